//! A server as an authority passes the suite that every store passes: the remote authority, a real
//! server on a loopback socket, and the store in memory behind it; with plain calls, and over the holders'
//! streams in both encodings.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use lease::UnixMillis;
use leasehold_client::{Client, Options, Remote};
use leasehold_clock::Manual;
use leasehold_server::{Server, auth};
use leasehold_store::{
    conformance::Virtual,
    embedded::{self, Embedded},
};

const TOKEN: &str = "test-token-of-the-suite";

/// The server ends with the test's runtime.
async fn served(how: fn(Remote) -> Remote) -> Virtual {
    let clock = Manual::new(UnixMillis::new(1_800_000_000_000));
    let store = Embedded::memory(embedded::Options::default(), Arc::new(clock.clone())).unwrap();
    let tokens = format!(r#"[{{"token":"{TOKEN}","scopes":["leases:admin"]}}]"#);
    let options = leasehold_server::Options {
        listen: ([127, 0, 0, 1], 0).into(),
        tokens: auth::parse_tokens("the suite", &tokens).unwrap(),
        ..leasehold_server::Options::default()
    };
    let server = Server::builder()
        .options(options)
        .authority(Arc::new(store))
        .clock(Arc::new(clock.clone()))
        .bind()
        .await
        .unwrap();
    let url = server.url();
    tokio::spawn(server.run(std::future::pending()));
    let client = Client::new(Options::new(url).token(TOKEN)).unwrap();
    let remote = Remote::connect(client).await.unwrap();
    Virtual::new(Arc::new(how(remote)), clock)
}

leasehold_store::conformance_tests!(served(|remote| remote).await);
leasehold_store::oracle_test!(served(|remote| remote).await);

mod over_streams {
    use super::{Remote, served};

    leasehold_store::conformance_tests!(served(Remote::with_own_streams).await);
    leasehold_store::oracle_test!(served(Remote::with_own_streams).await);
}

mod over_readable_streams {
    use super::{Remote, served};

    fn readable(remote: Remote) -> Remote {
        remote.with_readable_streams().with_own_streams()
    }

    leasehold_store::conformance_tests!(served(readable).await);
    leasehold_store::oracle_test!(served(readable).await);
}
