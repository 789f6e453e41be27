//! Opens the WebSocket.

use std::{os::fd::AsFd as _, sync::Arc, time::Duration};

use http::{Uri, header::AUTHORIZATION};
use lease::Holder;
use leasehold_api::{
    paths,
    stream::{Encoding, OWN_ADDRESS},
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{self, ClientRequestBuilder, protocol::WebSocketConfig},
};

use crate::{Client, Error, transport::chain};

/// How long connecting may take, up to the server's welcome.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// The largest message that is read: as large as any other answer.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// Bytes both ways, encrypted or not.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(super) type Socket = WebSocketStream<Box<dyn Duplex>>;

/// `line` distinguishes this stream from the others of the process.
pub(super) async fn open(
    client: &Client,
    holder: &Holder,
    encoding: Encoding,
    line: u64,
) -> Result<Socket, Error> {
    match tokio::time::timeout(OPEN_LIMIT, connect(client, holder, encoding, line)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Unavailable(format!("nothing within {OPEN_LIMIT:?}"))),
    }
}

async fn connect(
    client: &Client,
    holder: &Holder,
    encoding: Encoding,
    line: u64,
) -> Result<Socket, Error> {
    let path = paths::fill(paths::HOLDER_STREAM, &[holder.name.as_str()]);
    let incarnation = paths::encode(holder.incarnation.as_str());
    let uri: Uri = format!("{}{path}?incarnation={incarnation}", client.url())
        .replacen("http", "ws", 1)
        .parse()
        .map_err(|error| Error::Invalid(format!("address of the stream: {error}")))?;
    let encrypted = uri.scheme_str() == Some("wss");
    let host = uri.host().unwrap_or_default();
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
    let tcp = TcpStream::connect((host.as_str(), port))
        .await
        .map_err(|error| Error::Unavailable(error.to_string()))?;
    tcp.set_nodelay(true)
        .map_err(|error| Error::Unavailable(error.to_string()))?;
    let own_address = tcp
        .local_addr()
        .map_err(|error| Error::Unavailable(error.to_string()))?;
    // Before the server knows whose connection it is: from then on its end means something.
    if let Some(lifeline) = &client.options().lifeline {
        lifeline
            .hold(line, tcp.as_fd())
            .map_err(|error| Error::Unavailable(format!("nobody else holds it: {error}")))?;
    }
    let bytes: Box<dyn Duplex> = if encrypted {
        let mut config = client.options().trust.config()?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from(host)
            .map_err(|error| Error::Invalid(format!("host name: {error}")))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let tls = connector.connect(name, tcp).await;
        Box::new(tls.map_err(|error| Error::Unavailable(error.to_string()))?)
    } else {
        Box::new(tcp)
    };
    let mut request = ClientRequestBuilder::new(uri)
        .with_sub_protocol(encoding.subprotocol())
        .with_header(OWN_ADDRESS, own_address.to_string());
    if let Some(bearer) = client.bearer() {
        let bearer = bearer.to_str().unwrap_or_default();
        request = request.with_header(AUTHORIZATION.as_str(), bearer);
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    match client_async_with_config(request, bytes, Some(config)).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => {
            let body = response.body().as_deref().unwrap_or_default();
            let mut problem: leasehold_api::Problem =
                serde_json::from_slice(body).unwrap_or_default();
            problem.status = response.status().as_u16();
            Err(Error::Problem(Box::new(problem)))
        }
        Err(error) => Err(Error::Unavailable(chain(&error))),
    }
}
