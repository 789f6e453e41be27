//! Where Redis is: one server, a primary that sentinels know, or the nodes of a cluster.

use std::{fmt, path::PathBuf};

use lease::Invalid;

/// Where Redis is.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// One server.
    Server {
        /// How to log in and whether to encrypt.
        login: Login,
        /// `host:port`.
        host: String,
    },
    /// A primary that sentinels watch.
    Sentinel {
        /// How to log in at the primary; sentinels are asked without.
        login: Login,
        /// `host:port` of each sentinel.
        hosts: Vec<String>,
        /// The name under which they watch it.
        service: String,
    },
    /// A cluster; all keys live in one slot of it.
    Cluster {
        /// How to log in.
        login: Login,
        /// `host:port` of some nodes.
        hosts: Vec<String>,
    },
}

/// How to log in.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Login {
    /// As in an address: `user:password`, percent-encoded.
    pub credentials: Option<String>,
    /// The number of the database.
    pub database: u32,
    /// Encrypted.
    pub tls: bool,
    /// Certificates to trust instead of the system's, as a PEM file.
    pub ca: Option<PathBuf>,
}

impl Login {
    /// The address of one server for the client library.
    pub(super) fn url(&self, host: &str) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let credentials = self
            .credentials
            .as_ref()
            .map(|credentials| format!("{credentials}@"))
            .unwrap_or_default();
        format!("{scheme}://{credentials}{host}/{}", self.database)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password stays out of every log.
        f.debug_struct("Login")
            .field("database", &self.database)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { host, .. } => write!(f, "Redis at {host}"),
            Self::Sentinel { hosts, service, .. } => {
                write!(f, "Redis {service} of the sentinels {}", hosts.join(","))
            }
            Self::Cluster { hosts, .. } => write!(f, "Redis cluster at {}", hosts.join(",")),
        }
    }
}

const EXPECTED: Invalid = Invalid::new(
    "store",
    "redis://HOST[:PORT][/DB], rediss://…, redis-cluster://HOST:PORT,… or redis+sentinel://HOST:PORT,…/SERVICE",
);

impl Address {
    /// How to log in.
    pub(super) fn login_mut(&mut self) -> &mut Login {
        match self {
            Self::Server { login, .. }
            | Self::Sentinel { login, .. }
            | Self::Cluster { login, .. } => login,
        }
    }

    /// Reads an address without its settings.
    pub(super) fn parse(place: &str, tls: bool) -> Result<Self, Invalid> {
        let (scheme, rest) = place.split_once("://").ok_or(EXPECTED)?;
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials.to_owned()), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts: Vec<String> = hosts
            .split(',')
            .map(with_port)
            .collect::<Option<_>>()
            .ok_or(EXPECTED)?;
        let login = |database: &str, tls| {
            Ok::<_, Invalid>(Login {
                credentials: credentials.clone(),
                database: match database {
                    "" => 0,
                    number => number.parse().map_err(|_| EXPECTED)?,
                },
                tls,
                ca: None,
            })
        };
        match scheme {
            "redis" | "rediss" if hosts.len() == 1 => Ok(Self::Server {
                login: login(path, tls || scheme == "rediss")?,
                host: hosts.into_iter().next().ok_or(EXPECTED)?,
            }),
            // A cluster has one database only.
            "redis-cluster" if path.is_empty() => Ok(Self::Cluster {
                login: login("", tls)?,
                hosts,
            }),
            "redis+sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(EXPECTED);
                }
                Ok(Self::Sentinel {
                    login: login(database, tls)?,
                    hosts,
                    service: service.to_owned(),
                })
            }
            _ => Err(EXPECTED),
        }
    }
}

fn with_port(host: &str) -> Option<String> {
    if host.is_empty() {
        return None;
    }
    // The last colon of an IPv6 address in brackets is not one before a port.
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Some(if has_port {
        host.to_owned()
    } else {
        format!("{host}:6379")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_of_an_address() {
        let server = Address::parse("rediss://:secret@cache", false).unwrap();
        let Address::Server { login, host } = &server else {
            panic!("{server:?}")
        };
        assert_eq!(login.url(host), "rediss://:secret@cache:6379/0");
        assert!(!format!("{server:?}{login:?}").contains("secret"));
        let sentinel = Address::parse("redis+sentinel://a:1,b:2/main/3", false).unwrap();
        assert!(matches!(sentinel, Address::Sentinel { hosts, service, .. }
            if hosts == ["a:1", "b:2"] && service == "main"));
        assert!(matches!(
            Address::parse("redis-cluster://a:1,b", false).unwrap(),
            Address::Cluster { hosts, .. } if hosts == ["a:1", "b:6379"]
        ));
    }

    #[test]
    fn says_what_it_expects() {
        for wrong in [
            "redis",
            "redis://",
            "redis://a,b",
            "redis+sentinel://a:1",
            "redis://a/x",
        ] {
            let error = Address::parse(wrong, false).unwrap_err();
            assert_eq!(error.field, "store", "{wrong}");
        }
    }
}
