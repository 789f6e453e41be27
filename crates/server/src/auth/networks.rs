//! Which networks may reach the server at all, and who is behind a proxy.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, header};
use ipnet::IpNet;
use leasehold_api::stream::OWN_ADDRESS;

use crate::GuardOptions;

/// The header that proxies extend.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// What a proxy leaves behind in a request.
static PROXY_HEADERS: [HeaderName; 5] = [
    FORWARDED_FOR,
    header::FORWARDED,
    header::VIA,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-forwarded-proto"),
];

/// Where a request came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The client: the socket's peer, or whom a trusted proxy names.
    pub client: IpAddr,
    /// Whether the client itself is at the other end of the socket, as far as can be seen.
    pub direct: bool,
    /// Whether a trusted proxy named its client in a way that cannot be read.
    pub unreadable: bool,
}

impl Origin {
    /// The same, as far as a client that names its own end of the connection is the one at the other
    /// end of the socket: what merely forwards bytes has another address, or at least another port.
    pub(crate) fn named(self, seen: SocketAddr, headers: &HeaderMap) -> Self {
        let is_same = headers.get(OWN_ADDRESS).is_none_or(|named| {
            let named = named.to_str().ok().and_then(|text| text.parse().ok());
            named.is_some_and(|named: SocketAddr| {
                named.port() == seen.port() && named.ip().to_canonical() == seen.ip().to_canonical()
            })
        });
        Self {
            direct: self.direct && is_same,
            ..self
        }
    }
}

/// Private and loopback networks of IPv4 and IPv6.
pub fn default_networks() -> Vec<IpNet> {
    [
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    ]
    .iter()
    .filter_map(|text| text.parse().ok())
    .collect()
}

/// The guard. Without a list of networks everybody is admitted; a list that cannot be parsed is an
/// error at start, and never admits everybody.
#[derive(Clone, Debug)]
pub struct Networks {
    allow: Option<Vec<IpNet>>,
    trusted: Vec<IpNet>,
}

impl Networks {
    /// Reads the lists.
    pub fn new(
        options: Option<&GuardOptions>,
        trusted_proxies: &[String],
    ) -> Result<Self, lease::Invalid> {
        let allow = match options {
            None => None,
            Some(GuardOptions { allow: None }) => Some(default_networks()),
            Some(GuardOptions { allow: Some(list) }) => Some(networks(list, "lan_guard.allow")?),
        };
        let trusted = networks(trusted_proxies, "trusted_proxies")?;
        if trusted.iter().any(|network| network.prefix_len() == 0) {
            return Err(lease::Invalid::new(
                "trusted_proxies",
                "the networks of the proxies, not the whole internet",
            ));
        }
        Ok(Self { allow, trusted })
    }

    /// Where a request came from. `X-Forwarded-For` is believed only from a trusted proxy: it is
    /// walked from the right, trusted hops are skipped, and the first other one is the client.
    pub fn origin(&self, peer: IpAddr, headers: &HeaderMap) -> Origin {
        let peer = peer.to_canonical();
        let proxied = PROXY_HEADERS.iter().any(|name| headers.contains_key(name));
        let trusted = self.trusts(peer);
        let behind = if trusted {
            self.behind(headers)
        } else {
            Ok(None)
        };
        Origin {
            client: behind.ok().flatten().unwrap_or(peer),
            direct: !proxied && !trusted,
            unreadable: behind.is_err(),
        }
    }

    /// Whether this client may talk to the server. One that cannot be read may not, where it matters.
    pub fn admits(&self, origin: Origin) -> bool {
        let client = origin.client.to_canonical();
        self.allow.as_ref().is_none_or(|networks| {
            !origin.unreadable && networks.iter().any(|network| network.contains(&client))
        })
    }

    /// Whether this is a proxy that is believed.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.trusted
            .iter()
            .any(|network| network.contains(&address))
    }

    /// The nearest hop that is not trusted, `None` when all of them are. An error when a hop before it
    /// cannot be read.
    fn behind(&self, headers: &HeaderMap) -> Result<Option<IpAddr>, Unreadable> {
        let values: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
        for value in values.into_iter().rev() {
            for hop in value.as_bytes().rsplit(|&byte| byte == b',') {
                let hop = std::str::from_utf8(hop).map_err(|_| Unreadable)?;
                let hop: IpAddr = hop.trim().parse().map_err(|_| Unreadable)?;
                let hop = hop.to_canonical();
                if !self.trusts(hop) {
                    return Ok(Some(hop));
                }
            }
        }
        Ok(None)
    }
}

/// A hop that cannot be read.
#[derive(Clone, Copy)]
struct Unreadable;

fn networks(list: &[String], field: &'static str) -> Result<Vec<IpNet>, lease::Invalid> {
    list.iter()
        .map(|text| {
            let text = text.trim();
            text.parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| {
                    lease::Invalid::new(field, "networks or addresses, for example 10.0.0.0/8")
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allow: Option<&[&str]>, trusted: &[&str]) -> Networks {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let options = GuardOptions {
            allow: allow.map(texts),
        };
        Networks::new(Some(&options), &texts(trusted)).unwrap()
    }

    fn client(guard: &Networks, peer: &str, forwarded: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        guard
            .origin(peer.parse().unwrap(), &headers)
            .client
            .to_string()
    }

    fn admits(guard: &Networks, peer: &str, forwarded: &[&[u8]]) -> bool {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, http::HeaderValue::from_bytes(value).unwrap());
        }
        guard.admits(guard.origin(peer.parse().unwrap(), &headers))
    }

    #[test]
    fn a_hop_that_cannot_be_read_is_not_let_in_where_a_guard_is_set() {
        let guarded = guard(None, &["10.0.0.0/8"]);
        assert!(admits(&guarded, "10.0.0.1", &[b"192.168.0.1"]));
        assert!(!admits(&guarded, "10.0.0.1", &[b"\xe9, 8.8.8.8"]));
        assert!(!admits(&guarded, "10.0.0.1", &[b"8.8.8.8, \xe9"]));
        assert!(!admits(&guarded, "10.0.0.1", &[b"8.8.8.8", b"what"]));
        let open = Networks::new(None, &["10.0.0.0/8".to_owned()]).unwrap();
        assert!(admits(&open, "10.0.0.1", &[b"\xe9"]));
    }

    #[test]
    fn private_networks_of_both_families_are_let_in_by_default() {
        let guard = guard(None, &[]);
        for inside in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.9",
            "::1",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(admits(&guard, inside, &[]), "{inside}");
        }
        for outside in ["8.8.8.8", "2001:db8::1", "172.32.0.1", "::ffff:8.8.8.8"] {
            assert!(!admits(&guard, outside, &[]), "{outside}");
        }
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let guard = guard(None, &["10.0.0.0/8", "fd00::/8"]);
        assert_eq!(client(&guard, "8.8.8.8", &["127.0.0.1"]), "8.8.8.8");
        assert_eq!(client(&guard, "10.0.0.1", &["1.1.1.1, 8.8.8.8"]), "8.8.8.8");
        assert_eq!(
            client(&guard, "10.0.0.1", &["8.8.8.8, 10.0.0.2"]),
            "8.8.8.8"
        );
        assert_eq!(
            client(&guard, "10.0.0.1", &["127.0.0.1", "8.8.8.8, fd00::2"]),
            "8.8.8.8"
        );
        assert_eq!(client(&guard, "10.0.0.1", &["127.0.0.1, what"]), "10.0.0.1");
        assert_eq!(client(&guard, "10.0.0.1", &["10.0.0.3"]), "10.0.0.1");
        assert_eq!(
            client(&guard, "::ffff:10.0.0.1", &["2001:db8::1"]),
            "2001:db8::1"
        );
    }

    #[test]
    fn a_guard_that_cannot_be_read_is_an_error() {
        let wrong = |allow: &str, trusted: &str| {
            let options = GuardOptions {
                allow: Some(vec![allow.to_owned()]),
            };
            Networks::new(Some(&options), &[trusted.to_owned()]).is_err()
        };
        assert!(!wrong("10.0.0.0/8", "10.0.0.1"));
        assert!(wrong("10.0.0.0/99", "10.0.0.1"));
        assert!(wrong("10.0.0.0/8", "proxy.example"));
        assert!(wrong("10.0.0.0/8", "0.0.0.0/0"));
        assert!(wrong("10.0.0.0/8", "::/0"));
    }
}
