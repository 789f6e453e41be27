//! Addresses without their secrets. The one place that knows where secrets appear in a URL.

/// Shown instead of a secret.
pub const HIDDEN: &str = "(hidden)";

/// A query parameter whose name contains one of these holds a secret.
const SECRET_WORDS: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "token",
    "secret",
    "key",
    "auth",
    "credential",
    "signature",
    "session",
];
/// The same for short names, which must be whole.
const SECRET_NAMES: [&str; 4] = ["pass", "pw", "sig", "jwt"];

/// An address as it may be shown and logged: the user's name stays, the password and secret parameters
/// of the query are hidden.
///
/// ```
/// assert_eq!(
///     leasehold_lease::redact::url("amqp://joe:hush@host/x?api_key=hush&a=b"),
///     "amqp://joe:(hidden)@host/x?api_key=(hidden)&a=b",
/// );
/// ```
pub fn url(url: &str) -> String {
    let Some(parts) = Parts::of(url) else {
        return url.to_owned();
    };
    let user = parts.user.map(|user| match user.split_once(':') {
        Some((name, _)) => format!("{name}:{HIDDEN}@"),
        None => format!("{user}@"),
    });
    parts.with(user.as_deref().unwrap_or_default())
}

/// An address without user and password, and with secret parameters of the query hidden.
pub fn without_credentials(url: &str) -> String {
    Parts::of(url).map_or_else(|| url.to_owned(), |parts| parts.with(""))
}

/// The user and password in an address.
///
/// ```
/// assert_eq!(leasehold_lease::redact::login("http://ann:pw@host/x"), Some("ann:pw"));
/// assert_eq!(leasehold_lease::redact::login("udp://@239.0.0.1:1234/x@y"), None);
/// ```
pub fn login(url: &str) -> Option<&str> {
    let user = Parts::of(url)?.user;
    user.filter(|user| !user.is_empty())
}

/// The address that somebody who saw `stored` only [without credentials](without_credentials) means by
/// `sent`: what was not shown is put back, as long as it goes to the same host.
pub fn restored(sent: &str, stored: &str) -> String {
    let (Some(new), Some(old)) = (Parts::of(sent), Parts::of(stored)) else {
        return sent.to_owned();
    };
    if (new.scheme, new.host) != (old.scheme, old.host) {
        // A password never goes to a host that it was not meant for.
        return sent.to_owned();
    }
    let user = match (new.user, old.user) {
        (Some(user), _) | (None, Some(user)) => format!("{user}@"),
        (None, None) => String::new(),
    };
    let rest = new.rest_with(|name, value| {
        let hidden = value == HIDDEN;
        hidden
            .then(|| old.parameter(name))
            .flatten()
            .unwrap_or(value)
    });
    format!("{}://{user}{}{rest}", new.scheme, new.host)
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.contains(&name.as_str()) || SECRET_WORDS.iter().any(|word| name.contains(word))
}

struct Parts<'a> {
    scheme: &'a str,
    user: Option<&'a str>,
    host: &'a str,
    /// Path, query and fragment.
    rest: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        Some(Self {
            scheme,
            user,
            host,
            rest,
        })
    }

    fn with(&self, user: &str) -> String {
        let rest = self.rest_with(|name, value| if is_secret(name) { HIDDEN } else { value });
        format!("{}://{user}{}{rest}", self.scheme, self.host)
    }

    /// Path, query and fragment, with the values of the query's parameters replaced.
    fn rest_with(&self, value: impl Fn(&'a str, &'a str) -> &'a str) -> String {
        let Some((path, query)) = self.rest.split_once('?') else {
            return self.rest.to_owned();
        };
        let (query, fragment) = query.split_at(query.find('#').unwrap_or(query.len()));
        let query: Vec<String> = query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some((name, held)) => format!("{name}={}", value(name, held)),
                None => pair.to_owned(),
            })
            .collect();
        format!("{path}?{}{fragment}", query.join("&"))
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        let (_, query) = self.rest.split_once('?')?;
        let query = query.split('#').next()?;
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(it, _)| *it == name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_wherever_a_url_can_hold_them() {
        for (secret, shown) in [
            ("redis://host:1/0", "redis://host:1/0"),
            ("redis://:pw@host", "redis://:(hidden)@host"),
            ("http://joe@host/a", "http://joe@host/a"),
            ("http://a:b@c@d/e@f", "http://a:(hidden)@d/e@f"),
            (
                "http://h/p?user=joe&pwd=x&PASSWORD=y#f",
                "http://h/p?user=joe&pwd=(hidden)&PASSWORD=(hidden)#f",
            ),
            (
                "rtsp://h?access_token=x&channel=1",
                "rtsp://h?access_token=(hidden)&channel=1",
            ),
            ("embedded:/var/lib", "embedded:/var/lib"),
        ] {
            assert_eq!(url(secret), shown);
        }
        assert_eq!(without_credentials("http://a@b@c/d@e"), "http://c/d@e");
        assert_eq!(
            without_credentials("rtsp://u:p@h/s?key=x"),
            "rtsp://h/s?key=(hidden)"
        );
    }

    #[test]
    fn what_was_hidden_comes_back_to_the_same_host_only() {
        let stored = "rtsp://joe:hush@camera.local:554/one?key=k&n=1";
        let shown = without_credentials(stored);
        assert_eq!(restored(&shown, stored), stored);
        assert_eq!(
            restored("rtsp://camera.local:554/two?key=(hidden)", stored),
            "rtsp://joe:hush@camera.local:554/two?key=k"
        );
        assert_eq!(
            restored("rtsp://new:one@camera.local:554/one", stored),
            "rtsp://new:one@camera.local:554/one"
        );
        for elsewhere in [
            "rtsp://evil.example/one?key=(hidden)",
            "http://camera.local:554/one",
            "x",
        ] {
            assert_eq!(restored(elsewhere, stored), elsewhere);
        }
    }
}
