//! Every fault of the proxy, seen from both ends.

use std::io::ErrorKind;
use std::time::Duration;

use leasehold_testkit::{Proxy, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

const SOON: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_millis(200);

/// A server that sends everything back.
async fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    address
}

async fn round_trip(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Duration> {
    let start = Instant::now();
    stream.write_all(text).await?;
    let mut answer = vec![0; text.len()];
    timeout(SOON, stream.read_exact(&mut answer)).await??;
    assert_eq!(answer, text);
    Ok(start.elapsed())
}

/// How a connection fails that is reset as soon as it is made: the reset may be seen while
/// connecting or while reading.
async fn knock(address: std::net::SocketAddr) -> std::io::Error {
    let attempt = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.read_u8().await
    };
    let outcome = timeout(SOON, attempt).await.expect("an answer in time");
    outcome.expect_err("a reset")
}

#[tokio::test]
async fn passes_bytes_and_ends_both_ways() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    round_trip(&mut stream, b"hello").await.unwrap();
    assert_eq!((proxy.connections(), proxy.accepted()), (1, 1));

    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    timeout(SOON, stream.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest.is_empty());
    wait::until(SOON, "the connection is forgotten", async || {
        proxy.connections() == 0
    })
    .await;
}

#[tokio::test]
async fn carries_more_than_its_buffers_hold() {
    const BYTES: usize = 8 * 1024 * 1024;
    let proxy = Proxy::start(echo().await).await;
    let stream = TcpStream::connect(proxy.addr()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let writing = tokio::spawn(async move {
        write.write_all(&vec![7; BYTES]).await.unwrap();
        write
    });
    let mut received = vec![0; BYTES];
    timeout(Duration::from_secs(30), read.read_exact(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert!(received.iter().all(|byte| *byte == 7));
    writing.await.unwrap();
}

#[tokio::test]
async fn delays_without_limiting_the_rate() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.delay(Duration::from_millis(100));
    let once = round_trip(&mut stream, b"hello").await.unwrap();
    assert!(once >= Duration::from_millis(200), "{once:?}");

    // Many small writes travel together, not one after the other.
    let start = Instant::now();
    for _ in 0..200 {
        stream.write_all(b"x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut answer = [0; 200];
    timeout(SOON, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );

    proxy.delay(Duration::from_secs(60));
    proxy.pass();
    let quick = round_trip(&mut stream, b"hello").await.unwrap();
    assert!(quick < Duration::from_secs(10), "{quick:?}");
}

#[tokio::test]
async fn a_cut_resets_open_and_new_connections() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    round_trip(&mut stream, b"hello").await.unwrap();

    proxy.cut();
    let mut byte = [0];
    let error = timeout(SOON, stream.read(&mut byte))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let error = knock(proxy.addr()).await;
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    proxy.pass();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    round_trip(&mut stream, b"hello").await.unwrap();
}

#[tokio::test]
async fn a_black_hole_is_silent_and_gives_back_what_it_swallowed() {
    let proxy = Proxy::start(echo().await).await;
    let mut open = TcpStream::connect(proxy.addr()).await.unwrap();
    round_trip(&mut open, b"hello").await.unwrap();

    proxy.blackhole();
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    for stream in [&mut open, &mut new] {
        stream.write_all(b"lost?").await.unwrap();
        let mut answer = [0; 5];
        let silent = timeout(SILENCE, stream.read_exact(&mut answer)).await;
        assert!(silent.is_err(), "{silent:?}");
    }

    proxy.pass();
    for stream in [&mut open, &mut new] {
        let mut answer = [0; 5];
        timeout(SOON, stream.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer, b"lost?");
    }
}

#[tokio::test]
async fn a_black_hole_hides_that_the_other_side_ended() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await;
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let (server, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();

    proxy.blackhole();
    drop(server);

    let mut byte = [0];
    assert!(timeout(SILENCE, client.read(&mut byte)).await.is_err());
    proxy.cut();
    assert!(
        timeout(SOON, client.read(&mut byte))
            .await
            .unwrap()
            .is_err()
    );
}

#[tokio::test]
async fn throttles_each_direction() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.throttle(10_000);
    let slow = round_trip(&mut stream, &[1; 5_000]).await.unwrap();
    assert!(slow >= Duration::from_millis(400), "{slow:?}");
    proxy.pass();
    let quick = round_trip(&mut stream, &[1; 5_000]).await.unwrap();
    assert!(quick < slow, "{quick:?}");
}

#[tokio::test]
async fn an_upstream_that_refuses_resets_the_client() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let proxy = Proxy::start(address).await;
    let error = knock(proxy.addr()).await;
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
