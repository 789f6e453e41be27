//! Finds the server that decides right now: the one given, the primary that the sentinels name, or
//! the node of a cluster that has our slot. All our keys share one slot, so one node is enough.

use std::time::Duration;

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, TlsCertificates, Value, aio::MultiplexedConnection, cmd,
};
use lease::Error;

use super::{
    address::{Address, Login},
    failure, wire,
};

/// How connections are made.
pub(super) fn config(connect: Duration, response: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect))
        .set_response_timeout(Some(response))
}

/// The client for the server that decides now.
pub(super) async fn resolve(
    address: &Address,
    meta: &str,
    config: &AsyncConnectionConfig,
) -> Result<Client, Error> {
    match address {
        Address::Server { login, host } => client(login, host),
        Address::Sentinel {
            login,
            hosts,
            service,
        } => primary(login, hosts, service, config).await,
        Address::Cluster { login, hosts } => owner(login, hosts, meta, config).await,
    }
}

fn client(login: &Login, host: &str) -> Result<Client, Error> {
    if login.tls {
        // Fails only when one is there already, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let url = login.url(host);
    let made = match &login.ca {
        Some(path) => {
            let pem = std::fs::read(path)
                .map_err(|error| Error::Broken(format!("ca: {}: {error}", path.display())))?;
            let trusted = TlsCertificates {
                client_tls: None,
                root_cert: Some(pem),
            };
            Client::build_with_tls(url, trusted)
        }
        None => Client::open(url),
    };
    made.map_err(|error| failure::not_sent(&error))
}

async fn primary(
    login: &Login,
    sentinels: &[String],
    service: &str,
    config: &AsyncConnectionConfig,
) -> Result<Client, Error> {
    let mut question = cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(service);
    let plain = Login {
        credentials: None,
        database: 0,
        tls: login.tls,
        ca: login.ca.clone(),
    };
    let mut last = Error::Unavailable("no sentinel is configured".into());
    for sentinel in sentinels {
        let answer = match ask(&client(&plain, sentinel)?, &question, config).await {
            Ok(answer) => wire::texts(&answer),
            Err(error) => {
                last = error;
                continue;
            }
        };
        let [host, port] = answer.as_slice() else {
            last = Error::Unavailable(format!("the sentinel {sentinel} does not know {service}"));
            continue;
        };
        let found = client(login, &join(host, port))?;
        // A primary that was just demoted still answers: ask it what it thinks it is.
        match ask(&found, &cmd("ROLE"), config).await {
            Ok(Value::Array(role)) if role.first().map(wire::text).as_deref() == Some("master") => {
                return Ok(found);
            }
            Ok(_) => last = Error::Unavailable("the primary is being replaced".into()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn owner(
    login: &Login,
    nodes: &[String],
    meta: &str,
    config: &AsyncConnectionConfig,
) -> Result<Client, Error> {
    let mut last = Error::Unavailable("no node is configured".into());
    for node in nodes {
        match owner_by(login, node, meta, config).await {
            Ok(host) => return client(login, &host),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn owner_by(
    login: &Login,
    node: &str,
    meta: &str,
    config: &AsyncConnectionConfig,
) -> Result<String, Error> {
    let mut connection = connect(&client(login, node)?, config).await?;
    let mut key_slot = cmd("CLUSTER");
    key_slot.arg("KEYSLOT").arg(meta);
    let slot = wire::number(&send(&mut connection, &key_slot).await?);
    let mut slots = cmd("CLUSTER");
    slots.arg("SLOTS");
    let ranges = send(&mut connection, &slots).await?;
    for range in wire::items(&ranges) {
        let [from, to, primary, ..] = wire::items(range) else {
            continue;
        };
        if (wire::number(from)..=wire::number(to)).contains(&slot) {
            let [host, port, ..] = wire::items(primary) else {
                continue;
            };
            let host = match wire::text(host).as_str() {
                // A node that does not know its own address is the one we asked.
                "" => node
                    .rsplit_once(':')
                    .map_or(node, |(host, _)| host)
                    .to_owned(),
                host => host.to_owned(),
            };
            return Ok(join(&host, &wire::number(port).to_string()));
        }
    }
    Err(Error::Unavailable(format!("no node serves slot {slot}")))
}

fn join(host: &str, port: &str) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Connects; a failure means that nothing was sent.
pub(super) async fn connect(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, Error> {
    client
        .get_multiplexed_async_connection_with_config(config)
        .await
        .map_err(|error| failure::not_sent(&error))
}

async fn ask(
    client: &Client,
    question: &Cmd,
    config: &AsyncConnectionConfig,
) -> Result<Value, Error> {
    send(&mut connect(client, config).await?, question).await
}

/// For questions that change nothing.
async fn send(connection: &mut MultiplexedConnection, question: &Cmd) -> Result<Value, Error> {
    connection
        .send_packed_command(question)
        .await
        .map_err(|error| failure::not_sent(&error))
}
