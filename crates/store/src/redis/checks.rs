//! What is checked at start-up, and what has to be said about this Redis.

use ::redis::{Value, cmd};
use lease::{Capabilities, Error, engine};

use super::{
    address::Address,
    link::{Link, Repeat},
    options::Options,
    wire,
};

/// The oldest version that has all that the scripts use.
const OLDEST: (u32, u32) = (6, 2);

/// Refuses what would lose leases silently, and collects what a user should know.
pub(super) async fn run(link: &Link, options: &Options) -> Result<Capabilities, Error> {
    let info = ask(link, &["INFO"]).await?;
    let info = wire::text(&info);
    let version = field(&info, "redis_version").unwrap_or("0.0");
    if parse_version(version) < OLDEST {
        return Err(Error::Broken(format!(
            "Redis {version} is too old: {}.{} or newer is needed",
            OLDEST.0, OLDEST.1
        )));
    }
    let mut caveats = Vec::new();
    let policy = field(&info, "maxmemory_policy").unwrap_or("noeviction");
    let limited = field(&info, "maxmemory").is_some_and(|bytes| bytes != "0");
    if policy != "noeviction" && limited {
        let what = format!(
            "maxmemory-policy is {policy}: when its memory is full, Redis throws leases and tokens away"
        );
        if !options.allow_eviction {
            return Err(Error::Broken(format!(
                "{what}; set it to noeviction, or allow it with allow_eviction=true"
            )));
        }
        caveats.push(what);
    }
    let appends = field(&info, "aof_enabled") == Some("1");
    // Some services do not let anyone read their settings.
    let fsync = match ask(link, &["CONFIG", "GET", "appendfsync"]).await {
        Ok(answer) => settings_value(&answer),
        Err(_) => None,
    };
    let synced = appends && fsync.as_deref() == Some("always");
    if !appends {
        caveats.push(
            "Redis keeps no append-only file: after a crash leases and records are older or gone. \
             Tokens still grow, as they follow the clock."
                .into(),
        );
    } else if !synced {
        caveats.push(
            "appendfsync is not always: a crash can lose the last second of grants and records. \
             Tokens still grow, as they follow the clock."
                .into(),
        );
    }
    let replicas = field(&info, "connected_slaves").is_some_and(|count| count != "0");
    if replicas || !matches!(options.address, Address::Server { .. }) {
        caveats.push(
            "Replication is asynchronous: a failover can forget the last grants, and then two \
             holders work until the first one's next renewal. Receivers that check tokens drop the \
             older one's work."
                .into(),
        );
    }
    caveats.push(
        "Leases age while Redis is down, and by the clock of its machine, which must not be set \
         forward."
            .into(),
    );
    Ok(Capabilities {
        store: "redis".into(),
        durable: synced && !replicas && matches!(options.address, Address::Server { .. }),
        time_stops: false,
        shared: true,
        renewals_streamed: options.renewals != engine::RenewalEvents::Off,
        caveats,
        degraded: false,
        leads_expiry: false,
    })
}

async fn ask(link: &Link, words: &[&str]) -> Result<Value, Error> {
    let mut command = cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    let answer = link.send(&command, Repeat::Safe).await;
    answer.map_err(|failure| failure.error)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found == name).then(|| value.trim())
    })
}

fn settings_value(answer: &Value) -> Option<String> {
    match answer {
        Value::Map(pairs) => pairs.first().map(|(_, value)| wire::text(value)),
        _ => wire::items(answer).get(1).map(wire::text),
    }
}

fn parse_version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}
