//! What the server says about itself.

use lease::{Authority, Capabilities, Error};
use leasehold_client::Remote;
use leasehold_clock::{Clock, System};

use super::Finding;
use crate::{config::Config, connect};

/// A difference between the clocks that makes people wonder about shown times.
const CLOCKS_APART_MS: u64 = 1_000;

/// Reachability, the store's promises, the clocks.
pub async fn look(config: &Config) -> Vec<Finding> {
    let url = connect::url(config);
    let client = match connect::client(config) {
        Ok(client) => client,
        Err(failure) => {
            let text = failure.to_string();
            return vec![Finding::wrong(
                "server",
                text.trim_start_matches("error: "),
                "check --server",
            )];
        }
    };
    let remote = Remote::new(client);
    let sent = System.boot();
    let theirs = match remote.now().await {
        Ok(now) => now,
        Err(error) => return vec![unreachable(&url, &error)],
    };
    let took_ms = System.boot().since(sent);
    let mut findings = vec![Finding::fine(
        "server",
        format!("{url} answered in {took_ms} ms"),
    )];
    findings.push(clocks(theirs.get(), System.unix().get(), took_ms));
    match remote.refresh().await {
        Ok(()) => findings.extend(store(&remote.capabilities())),
        Err(error) => findings.push(Finding::wrong(
            "store",
            error.to_string(),
            "see the server's log",
        )),
    }
    findings
}

fn unreachable(url: &str, error: &Error) -> Finding {
    let advice = match error {
        Error::Denied(_) => {
            "the server is there and refuses the credential: see LEASEHOLD_CREDENTIAL, --credential-file, `leasehold credential ls`"
        }
        Error::Broken(_) => "the server is there and its store is not: see the server's log",
        _ => "start one with `leasehold serve`, or name another with --server",
    };
    Finding::wrong("server", format!("{url}: {error}"), advice)
}

fn clocks(theirs_ms: u64, ours_ms: u64, took_ms: u64) -> Finding {
    let apart_ms = theirs_ms.abs_diff(ours_ms).saturating_sub(took_ms);
    if apart_ms > CLOCKS_APART_MS {
        return Finding::note(
            "clocks",
            format!(
                "the server's clock is {apart_ms} ms away from this machine's; leases do not mind, shown times do"
            ),
        );
    }
    Finding::fine("clocks", "the server's clock agrees with this machine's")
}

fn store(capabilities: &Capabilities) -> Vec<Finding> {
    let yes = |answer: bool| if answer { "yes" } else { "no" };
    let promises = format!(
        "durable: {}; leases stop ageing while it is down: {}",
        yes(capabilities.durable),
        yes(capabilities.time_stops)
    );
    let mut findings = vec![if capabilities.durable {
        Finding::fine("store", promises)
    } else {
        Finding::note("store", promises)
    }];
    let caveats = capabilities.caveats.iter();
    findings.extend(caveats.map(|caveat| Finding::note("store", caveat)));
    findings
}
