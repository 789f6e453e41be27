//! A server that takes results and checks the token of each: the receiver that makes a late holder
//! harmless.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// The largest result that is taken.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// One result, as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// The key it was made under, `poll:<target>`.
    pub key: String,
    /// The token it carried; 0 when it carried none.
    pub token: u64,
    /// What it says.
    pub body: String,
    /// Whether its token was the newest one.
    pub accepted: bool,
}

/// What the server does with results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mood {
    /// Takes what has the newest token, and answers 409 to the rest.
    #[default]
    Checks,
    /// The same, with 412.
    ChecksPreconditions,
    /// Answers 500 to everything.
    Broken,
    /// Reads everything and answers nothing.
    Silent,
}

#[derive(Default)]
struct State {
    received: Vec<Received>,
    newest: BTreeMap<String, u64>,
    mood: Mood,
}

/// The server.
#[derive(Clone)]
pub struct Sink {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Sink {
    /// On a free port of this machine.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a free port");
        let sink = Self {
            address: listener
                .local_addr()
                .expect("a bound socket has an address"),
            state: Arc::default(),
        };
        let serving = sink.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sink = serving.clone();
                tokio::spawn(async move { sink.serve(stream).await });
            }
        });
        sink
    }

    /// Where to send results.
    pub fn url(&self) -> String {
        format!("http://{}/results", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every result so far.
    pub fn received(&self) -> Vec<Received> {
        self.state().received.clone()
    }

    /// How many results were accepted so far.
    pub fn accepted(&self) -> usize {
        let state = self.state();
        state.received.iter().filter(|it| it.accepted).count()
    }

    /// Somebody under this token was here: from now on older ones are refused.
    pub fn knows(&self, key: &str, token: u64) {
        self.state().newest.insert(key.to_owned(), token);
    }

    /// Changes what it does.
    pub fn behave(&self, mood: Mood) {
        self.state().mood = mood;
    }

    async fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut stream = BufReader::new(stream);
        while let Some(received) = read(&mut stream).await {
            let status = self.judge(received);
            let Some(status) = status else {
                std::future::pending::<()>().await;
                return;
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn judge(&self, mut received: Received) -> Option<&'static str> {
        let mut state = self.state();
        let newest = state.newest.entry(received.key.clone()).or_insert(0);
        let is_stale = received.token < *newest;
        *newest = received.token.max(*newest);
        let status = match state.mood {
            Mood::Silent => None,
            Mood::Broken => Some("500 Internal Server Error"),
            Mood::Checks if is_stale => Some("409 Conflict"),
            Mood::ChecksPreconditions if is_stale => Some("412 Precondition Failed"),
            Mood::Checks | Mood::ChecksPreconditions => Some("204 No Content"),
        };
        received.accepted = status == Some("204 No Content");
        state.received.push(received);
        status
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut received = Received {
        key: String::new(),
        token: 0,
        body: String::new(),
        accepted: false,
    };
    let mut length = 0;
    let mut first = true;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|&n| n > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        match name.to_ascii_lowercase().as_str() {
            "x-leasehold-fence" => received.token = value.trim().parse().ok()?,
            "x-leasehold-key" => value.trim().clone_into(&mut received.key),
            "content-length" => length = value.trim().parse().ok()?,
            _ if first && !line.starts_with("POST /results ") => return None,
            _ => {}
        }
        first = false;
    }
    if length > MAX_BODY_BYTES {
        return None;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    received.body = String::from_utf8(body).ok()?;
    Some(received)
}
