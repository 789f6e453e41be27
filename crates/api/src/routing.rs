//! Routing keys of what is published: words between dots, at most 255 bytes.

/// What AMQP allows.
const MAX_BYTES: usize = 255;
/// Stands for a part that is not known.
const NONE: &str = "-";

/// `<head>.<tenant>.<site>.<last>`. Dots in parts are escaped; a part that would make the key too long is
/// replaced by its digest, since the message itself has it in full.
pub fn key(head: &str, tenant: Option<&str>, site: Option<&str>, last: &str) -> String {
    let part = |text: Option<&str>| escaped(text.filter(|it| !it.is_empty()).unwrap_or(NONE));
    let whole = format!(
        "{head}.{}.{}.{}",
        part(tenant),
        part(site),
        part(Some(last))
    );
    if whole.len() <= MAX_BYTES {
        return whole;
    }
    let short = |text: Option<&str>| {
        let text = part(text);
        if text.len() <= 40 {
            text
        } else {
            format!("~{}", &lease::canonical::hex_sha256(text.as_bytes())[..32])
        }
    };
    format!(
        "{head}.{}.{}.{}",
        short(tenant),
        short(site),
        short(Some(last))
    )
}

/// One part: a dot would make two of it.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('.', "%2E")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_parts_and_keys_stay_short() {
        assert_eq!(
            key("runner.heartbeat", Some("ten.ant"), Some("s%"), "r"),
            "runner.heartbeat.ten%2Eant.s%25.r"
        );
        let (tenant, site) = ("t".repeat(255), "s".repeat(255));
        let long = key(
            "runner.heartbeat",
            Some(&tenant),
            Some(&site),
            &"é".repeat(255),
        );
        assert!(long.len() <= MAX_BYTES, "{}", long.len());
        assert_eq!(long.split('.').count(), 5);
        assert_eq!(key("lease.x", None, None, "a:b"), "lease.x.-.-.a:b");
    }
}
