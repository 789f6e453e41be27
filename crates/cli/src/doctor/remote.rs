//! What the server says about itself.

use lease::{Authority, Capabilities, Error};
use leasehold_client::Remote;
use leasehold_clock::{Clock, System};

use super::{Finding, fleet};
use crate::{config::Config, connect};

/// A difference between the clocks that makes people wonder about shown times.
const CLOCKS_APART_MS: u64 = 1_000;

/// Reachability, the store's promises, the clocks, replicas, broker, seals.
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
    let remote = Remote::new(client.clone());
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
    match client.overview().await {
        Ok(overview) => findings.extend(fleet::look(&overview)),
        Err(error) => findings.push(Finding::wrong(
            "replicas",
            error.to_string(),
            "check the credential's scopes: this needs leases:read",
        )),
    }
    findings.push(fleet::seals(&remote).await);
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
                "the store's clock is {apart_ms} ms away from this machine's; leases do not mind, shown times and tokens of a rebuilt store do"
            ),
            "set both clocks from the same source: `timedatectl set-ntp true`, or chrony",
        );
    }
    Finding::fine("clocks", "the store's clock agrees with this machine's")
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
        Finding::note(
            "store",
            promises,
            "choose a durable store before you rely on grants: embedded, or PostgreSQL",
        )
    }];
    let caveats = capabilities.caveats.iter();
    findings.extend(caveats.map(|caveat| {
        Finding::note(
            "store",
            caveat,
            "nothing, unless you rely on it: see what each store promises in docs/semantics.md",
        )
    }));
    if capabilities.degraded {
        findings.push(Finding::wrong(
            "store",
            "it takes no changes",
            "see the server's log: its disk may be full",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, clocks};

    #[test]
    fn clocks_may_be_as_far_apart_as_the_answer_took() {
        let verdict = |theirs: u64, took: u64| clocks(theirs, 1_000_000, took).verdict;
        assert_eq!(verdict(1_000_900, 0), Verdict::Fine);
        assert_eq!(verdict(1_005_000, 4_500), Verdict::Fine);
        assert_eq!(verdict(1_005_000, 100), Verdict::Note);
        assert_eq!(verdict(995_000, 100), Verdict::Note);
    }
}
