//! etcd: grant, create-if-absent, revoke. gRPC over shared HTTP/2 connections, as etcd's own client
//! does; the few messages are encoded by hand, so that the driver costs little.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use h2::{RecvStream, SendStream, client::SendRequest};
use lease::{Clock as _, UnixMillis};
use leasehold_bench::{
    rounds::{Caller, Callers},
    usage::Processes,
};
use leasehold_clock::System;
use leasehold_testkit::Etcd as Server;
use tokio::net::TcpStream;

use super::{Keys, TTL_MS};

/// How many callers share a connection.
const PER_CONNECTION: usize = 64;
/// How many keep-alives one turn sends.
pub const WINDOW: usize = 100;
/// Room that the server may fill before the driver has read: more than any answer here.
const FLOW_WINDOW: u32 = 8 << 20;

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// A server.
pub struct Etcd(Server);

impl Etcd {
    pub async fn start() -> Result<Self> {
        Ok(Self(Server::try_start().await?))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.addr()
    }

    pub fn processes(&self) -> Processes {
        Processes::one(self.0.pid())
    }

    /// A connection of its own.
    pub async fn connect(&self) -> Result<Client> {
        Client::open(self.0.addr()).await
    }

    /// Callers that acquire and release.
    pub async fn cycles(&self, callers: usize) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        let mut client = self.connect().await?;
        for caller in 0..callers {
            if caller % PER_CONNECTION == 0 && caller > 0 {
                client = self.connect().await?;
            }
            all.push(Box::new(Cycle {
                client: client.clone(),
                keys: Keys::new(caller, callers),
                owner: format!("client-{caller}"),
            }));
        }
        Ok(all)
    }

    /// Holds keys, a lease each. Returns the leases, and when each expires if it is not kept.
    pub async fn fill(
        &self,
        kind: &str,
        leases: usize,
        value: &str,
        ttl_seconds: u64,
    ) -> Result<Vec<Held>> {
        const LANES: usize = 64;
        let client = self.connect().await?;
        let tasks: Vec<_> = (0..LANES)
            .map(|lane| {
                let (mut client, kind, value) = (client.clone(), kind.to_owned(), value.to_owned());
                tokio::spawn(async move {
                    let mut held = Vec::new();
                    for number in (lane..leases).step_by(LANES) {
                        let lease = client.grant(ttl_seconds).await?;
                        let expires_at = System.unix().plus(ttl_seconds * 1000);
                        let key = format!("{kind}/lease-{number:09}");
                        ensure!(client.create(&key, &value, lease).await?, "{key} is held");
                        held.push(Held {
                            lease,
                            key,
                            expires_at,
                        });
                    }
                    anyhow::Ok(held)
                })
            })
            .collect();
        let mut held = Vec::with_capacity(leases);
        for task in tasks {
            held.extend(task.await??);
        }
        Ok(held)
    }

    /// Callers that keep leases alive, each over a stream of its own with its share of them.
    pub async fn renewals(&self, held: &[Held], lanes: usize) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        for lane in 0..lanes {
            let mut client = self.connect().await?;
            all.push(Box::new(Renewal {
                stream: client.stream(KEEP_ALIVE).await?,
                ids: held
                    .iter()
                    .skip(lane)
                    .step_by(lanes)
                    .map(|held| held.lease)
                    .collect(),
                next: 0,
            }));
        }
        Ok(all)
    }
}

/// A key with its lease.
pub struct Held {
    pub lease: u64,
    pub key: String,
    pub expires_at: UnixMillis,
}

/// A shared connection.
#[derive(Clone)]
pub struct Client {
    requests: SendRequest<Bytes>,
    authority: String,
}

impl Client {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(FLOW_WINDOW)
            .initial_connection_window_size(FLOW_WINDOW)
            .handshake(stream)
            .await?;
        tokio::spawn(connection);
        Ok(Self {
            requests,
            authority: address.to_string(),
        })
    }

    /// Opens a call in both directions.
    pub async fn stream(&mut self, method: &str) -> Result<Stream> {
        let request = http::Request::post(format!("http://{}{method}", self.authority))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        self.requests = self.requests.clone().ready().await?;
        let (answer, send) = self.requests.send_request(request, false)?;
        Ok(Stream {
            answer: Some(answer),
            send,
            receive: None,
            input: BytesMut::new(),
        })
    }

    /// One message there, one back.
    async fn call(&mut self, method: &str, message: &[u8]) -> Result<Bytes> {
        let mut stream = self.stream(method).await?;
        stream.send.send_data(framed(&[message]), true)?;
        let answer = stream.next().await?;
        stream.finish().await?;
        Ok(answer)
    }

    pub async fn grant(&mut self, ttl_seconds: u64) -> Result<u64> {
        let mut message = Vec::new();
        number(&mut message, 1, ttl_seconds);
        let answer = self.call("/etcdserverpb.Lease/LeaseGrant", &message);
        find_number(&answer.await?, 2).context("a grant without an id")
    }

    /// Whether the key was absent, and now is this lease's.
    pub async fn create(&mut self, key: &str, value: &str, lease: u64) -> Result<bool> {
        let mut compare = Vec::new();
        // The revision of its creation is (0 = equal, which is the default) none.
        number(&mut compare, 2, 1);
        bytes(&mut compare, 3, key.as_bytes());
        number(&mut compare, 5, 0);
        let mut put = Vec::new();
        bytes(&mut put, 1, key.as_bytes());
        bytes(&mut put, 2, value.as_bytes());
        number(&mut put, 3, lease);
        let mut operation = Vec::new();
        bytes(&mut operation, 2, &put);
        let mut message = Vec::new();
        bytes(&mut message, 1, &compare);
        bytes(&mut message, 2, &operation);
        let answer = self.call("/etcdserverpb.KV/Txn", &message).await?;
        Ok(find_number(&answer, 2) == Some(1))
    }

    pub async fn revoke(&mut self, lease: u64) -> Result<()> {
        let mut message = Vec::new();
        number(&mut message, 1, lease);
        self.call("/etcdserverpb.Lease/LeaseRevoke", &message)
            .await?;
        Ok(())
    }

    /// Waits for a lock, and returns the key that stands for having it.
    pub async fn lock(&mut self, name: &str, lease: u64) -> Result<Bytes> {
        let mut message = Vec::new();
        bytes(&mut message, 1, name.as_bytes());
        number(&mut message, 2, lease);
        let answer = self.call("/v3lockpb.Lock/Lock", &message).await?;
        find_bytes(&answer, 2).context("a lock without a key")
    }

    pub async fn unlock(&mut self, key: &[u8]) -> Result<()> {
        let mut message = Vec::new();
        bytes(&mut message, 1, key);
        self.call("/v3lockpb.Lock/Unlock", &message).await?;
        Ok(())
    }

    /// Opens a stream that keeps a lease.
    pub async fn keep_alive(&mut self, lease: u64) -> Result<KeepAlive> {
        let stream = self.stream(KEEP_ALIVE).await?;
        Ok(KeepAlive { stream, lease })
    }

    /// Watches every key that begins so; `a` to `b` in etcd's words.
    pub async fn watch(&mut self, prefix: &str) -> Result<Stream> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let mut create = Vec::new();
        bytes(&mut create, 1, prefix.as_bytes());
        bytes(&mut create, 2, &end);
        let mut message = Vec::new();
        bytes(&mut message, 1, &create);
        let mut stream = self.stream("/etcdserverpb.Watch/Watch").await?;
        stream.send(&[&message])?;
        // The first answer says that it is watched.
        stream.next().await?;
        Ok(stream)
    }
}

/// A call in both directions.
pub struct Stream {
    answer: Option<h2::client::ResponseFuture>,
    send: SendStream<Bytes>,
    receive: Option<RecvStream>,
    input: BytesMut,
}

impl Stream {
    pub fn send(&mut self, messages: &[&[u8]]) -> Result<()> {
        Ok(self.send.send_data(framed(messages), false)?)
    }

    /// The next message.
    pub async fn next(&mut self) -> Result<Bytes> {
        if let Some(answer) = self.answer.take() {
            self.receive = Some(answer.await?.into_body());
        }
        let receive = self.receive.as_mut().context("no answer")?;
        loop {
            if self.input.len() >= 5 {
                let length = (&self.input[1..5]).get_u32() as usize;
                if self.input.len() >= 5 + length {
                    self.input.advance(5);
                    return Ok(self.input.split_to(length).freeze());
                }
            }
            let Some(data) = receive.data().await else {
                let trailers = receive.trailers().await?;
                bail!("etcd ended a call: {trailers:?}");
            };
            let data = data?;
            receive.flow_control().release_capacity(data.len())?;
            self.input.extend_from_slice(&data);
        }
    }

    async fn finish(mut self) -> Result<()> {
        if let Some(receive) = &mut self.receive {
            while let Some(data) = receive.data().await {
                data?;
            }
            let trailers = receive.trailers().await?.unwrap_or_default();
            let status = trailers.get("grpc-status");
            ensure!(
                status.is_none_or(|status| status == "0"),
                "etcd refused: {trailers:?}"
            );
        }
        Ok(())
    }
}

/// What keeps one lease.
pub struct KeepAlive {
    stream: Stream,
    lease: u64,
}

impl KeepAlive {
    pub async fn keep(&mut self) -> Result<()> {
        let mut message = Vec::new();
        number(&mut message, 1, self.lease);
        self.stream.send(&[&message])?;
        let answer = self.stream.next().await?;
        ensure!(find_number(&answer, 3).is_some(), "a lease was lost");
        Ok(())
    }
}

fn framed(messages: &[&[u8]]) -> Bytes {
    let mut framed = Vec::new();
    for message in messages {
        framed.push(0);
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(message);
    }
    framed.into()
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// One field of a message.
pub enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, with their numbers.
pub fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn take(message: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = message.split_first()?;
            *message = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    let mut found = Vec::new();
    while let Some(tag) = take(&mut message) {
        let value = match tag & 7 {
            0 => take(&mut message).map(Field::Number),
            2 => take(&mut message).and_then(|length| {
                let (value, rest) = message.split_at_checked(length as usize)?;
                message = rest;
                Some(Field::Bytes(value))
            }),
            _ => None,
        };
        let Some(value) = value else { break };
        found.push((tag >> 3, value));
    }
    found
}

fn find_number(message: &[u8], wanted: u64) -> Option<u64> {
    fields(message).into_iter().find_map(|it| match it {
        (field, Field::Number(value)) if field == wanted => Some(value),
        _ => None,
    })
}

fn find_bytes(message: &[u8], wanted: u64) -> Option<Bytes> {
    fields(message).into_iter().find_map(|it| match it {
        (field, Field::Bytes(value)) if field == wanted => Some(Bytes::copy_from_slice(value)),
        _ => None,
    })
}

/// The keys whose deletion a watch's answer reports.
pub fn deleted(answer: &[u8]) -> Vec<Bytes> {
    fields(answer)
        .into_iter()
        .filter_map(|it| match it {
            (11, Field::Bytes(event)) if find_number(event, 1) == Some(1) => {
                find_bytes(&find_bytes(event, 2)?, 1)
            }
            _ => None,
        })
        .collect()
}

struct Cycle {
    client: Client,
    keys: Keys,
    owner: String,
}

impl Caller for Cycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let key = format!("job/{}", self.keys.next());
            let lease = self.client.grant(TTL_MS / 1000).await?;
            let created = self.client.create(&key, &self.owner, lease);
            ensure!(created.await?, "{key} is held");
            self.client.revoke(lease).await
        })
    }
}

struct Renewal {
    stream: Stream,
    ids: Vec<u64>,
    next: usize,
}

impl Caller for Renewal {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let messages: Vec<Vec<u8>> = (0..WINDOW)
                .map(|place| {
                    let id = self.ids[(self.next + place) % self.ids.len()];
                    let mut message = Vec::new();
                    number(&mut message, 1, id);
                    message
                })
                .collect();
            self.next += WINDOW;
            let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            self.stream.send(&messages)?;
            for _ in 0..WINDOW {
                let answer = self.stream.next().await?;
                // Without a ttl it is gone.
                ensure!(find_number(&answer, 3).is_some(), "a lease was lost");
            }
            Ok(())
        })
    }
}
