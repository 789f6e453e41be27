//! Timing that cannot work is refused before anything starts, with what it would have led to.

use lease::{Margin, Ttl};
use leasehold_api::MAX_TTL_SECONDS;

use super::{Config, Period, wrong};
use crate::exit::Failure;

/// How late an authority may notice that a lease lapsed (L12), for the worst case that is printed.
const LATENESS_MS: u64 = 50;

/// A ttl on the command line: what the HTTP interface takes, and nothing that lapses before its answer
/// is there.
pub fn parse_ttl(text: &str) -> Result<Period, String> {
    let ttl = text
        .parse::<Period>()
        .map_err(|invalid| invalid.to_string())?;
    within(ttl).map(|()| ttl)
}

fn within(ttl: Period) -> Result<(), String> {
    if (1_000..=MAX_TTL_SECONDS * 1_000).contains(&ttl.millis()) {
        return Ok(());
    }
    let most = Period::whole(MAX_TTL_SECONDS);
    Err(format!("expected 1s to {most}"))
}

/// Checks how a key is to be owned.
pub fn check(config: &Config) -> Result<(), Failure> {
    let lease = &config.lease;
    within(lease.ttl).map_err(|expected| wrong(format!("lease.ttl {}: {expected}", lease.ttl)))?;
    let ttl = Ttl::from_millis(lease.ttl.millis()).map_err(wrong)?;
    let third = Period::from_millis(ttl.millis() / 3);
    if let Some(renew_every) = lease.renew_every {
        if renew_every.millis() == 0 {
            return Err(wrong("lease.renew_every: expected more than 0"));
        }
        if renew_every > third {
            return Err(wrong(format!(
                "lease.renew_every {renew_every} is longer than a third of lease.ttl {}: after one lost renewal there would be no time for another before the holder must stop",
                lease.ttl
            ))
            .hint(format!(
                "at most {third} with this ttl, or a ttl of at least {}. {}",
                Period::from_millis(renew_every.millis().saturating_mul(3)),
                worst_case(lease.ttl)
            )));
        }
    }
    let margin = match lease.margin {
        Some(margin) => Margin::new(margin.millis(), ttl).map_err(|_| {
            wrong(format!(
                "lease.margin {margin} is longer than half of lease.ttl {}",
                lease.ttl
            ))
            .hint(worst_case(lease.ttl))
        })?,
        None => Margin::of(ttl),
    };
    if let Some(stop_grace) = lease.stop_grace
        && stop_grace.millis() + margin.millis() + third.millis() > ttl.millis()
    {
        let most = ttl
            .millis()
            .saturating_sub(margin.millis() + third.millis());
        return Err(wrong(format!(
            "lease.stop_grace {stop_grace} leaves no time to work: a command would be asked to stop before its lease can be renewed",
        ))
        .hint(format!(
            "at most {} with a ttl of {}. {}",
            Period::from_millis(most),
            lease.ttl,
            worst_case(lease.ttl)
        )));
    }
    Ok(())
}

/// What a ttl means when a holder vanishes without a word.
pub fn worst_case(ttl: Period) -> String {
    format!(
        "Worst-case failover with a ttl of {ttl}: {} after the holder's last renewal",
        Period::from_millis(ttl.millis() + LATENESS_MS)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(lease: &str) -> Option<String> {
        let config: Config = serde_saphyr::from_str(&format!("lease: {lease}")).unwrap();
        check(&config).err().map(|failure| failure.to_string())
    }

    #[test]
    fn unsafe_timing_is_refused_with_the_worst_case() {
        for fine in [
            "{}",
            "{ttl: 30s, renew_every: 10s}",
            "{ttl: 1s, margin: 500ms}",
            "{ttl: 30s, stop_grace: 10s}",
        ] {
            assert_eq!(complaint(fine), None, "{fine}");
        }
        insta::assert_snapshot!(
            [
                "{ttl: 0s}",
                "{ttl: 1ms}",
                "{ttl: 61m}",
                "{ttl: 30s, renew_every: 11s}",
                "{ttl: 30s, renew_every: 0s}",
                "{ttl: 2s, margin: 1100ms}",
                "{ttl: 30s, stop_grace: 20s}",
            ]
            .map(|lease| format!("{lease}\n{}", complaint(lease).unwrap_or_default()))
            .join("\n\n")
        );
    }
}
