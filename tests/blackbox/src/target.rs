//! A server that is polled, and remembers every request with the token it carried. What it saw is
//! the proof: no target was polled twice at once, and no token ever went back.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// One request, as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Which target: the path without its slash.
    pub target: String,
    /// The token it carried; 0 when it carried none.
    pub token: u64,
    /// `GET`, or `HEAD` for a probe.
    pub method: String,
    /// Whether it was conditional.
    pub conditional: bool,
    /// When it arrived, in ms on the machine's own clock.
    pub began_ms: u64,
    /// When it was answered; `u64::MAX` while it is not.
    pub ended_ms: u64,
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HIT {} {} {} {} {} {}",
            self.target, self.token, self.method, self.conditional, self.began_ms, self.ended_ms
        )
    }
}

impl Hit {
    /// Reads what [`Hit`] shows itself as.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("HIT ")?.split(' ');
        Some(Self {
            target: words.next()?.to_owned(),
            token: words.next()?.parse().ok()?,
            method: words.next()?.to_owned(),
            conditional: words.next()?.parse().ok()?,
            began_ms: words.next()?.parse().ok()?,
            ended_ms: words.next()?.parse().ok()?,
        })
    }
}

/// Milliseconds on a clock that all processes of this machine share and that never jumps.
pub fn now_ms() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .expect("every Unix has CLOCK_MONOTONIC");
    u64::try_from(Duration::from(time).as_millis()).unwrap_or(u64::MAX)
}

/// How a server behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// How long it thinks about an answer.
    pub think: Duration,
    /// Answers 503 to everything.
    pub broken: bool,
    /// Prints every answered request on standard output.
    pub print: bool,
}

/// The server.
#[derive(Clone)]
pub struct Target {
    address: SocketAddr,
    hits: Arc<Mutex<Vec<Hit>>>,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl Target {
    /// Listens on this address.
    ///
    /// # Panics
    ///
    /// When the address cannot be had.
    pub async fn listen(address: SocketAddr, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free address");
        let server = Self {
            address: listener
                .local_addr()
                .expect("a bound socket has an address"),
            hits: Arc::default(),
            behaviour: Arc::new(Mutex::new(behaviour)),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = serving.clone();
                tokio::spawn(async move { server.serve(stream).await });
            }
        });
        server
    }

    /// On a free port of this machine.
    pub async fn start() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let behaviour = Behaviour {
            think: Duration::from_millis(5),
            ..Behaviour::default()
        };
        Self::listen(any, behaviour).await
    }

    /// The address of targets, with `{id}` for their id.
    pub fn url(&self) -> String {
        format!("http://{}/{{id}}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how it behaves.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(
            &mut self
                .behaviour
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Every request so far.
    pub fn hits(&self) -> Vec<Hit> {
        self.hits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Every request since that moment.
    pub fn hits_since(&self, from_ms: u64) -> Vec<Hit> {
        let mut hits = self.hits();
        hits.retain(|hit| hit.began_ms >= from_ms);
        hits
    }

    async fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut stream = BufReader::new(stream);
        while let Some(mut hit) = read(&mut stream).await {
            hit.began_ms = now_ms();
            let behaviour = *self
                .behaviour
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let place = {
                let mut hits = self.hits.lock().unwrap_or_else(PoisonError::into_inner);
                hits.push(hit.clone());
                hits.len() - 1
            };
            tokio::time::sleep(behaviour.think).await;
            hit.ended_ms = now_ms();
            let answer = answer(&hit, behaviour.broken);
            self.hits.lock().unwrap_or_else(PoisonError::into_inner)[place] = hit.clone();
            if behaviour.print {
                println!("{hit}");
            }
            if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

fn answer(hit: &Hit, broken: bool) -> String {
    let body = format!("{{\"target\":\"{}\"}}", hit.target);
    let (status, body) = match (broken, hit.conditional) {
        (true, _) => ("503 Service Unavailable", String::new()),
        (false, true) => ("304 Not Modified", String::new()),
        (false, false) => ("200 OK", body),
    };
    let shown = if hit.method == "HEAD" { "" } else { &body };
    format!(
        "HTTP/1.1 {status}\r\netag: \"one\"\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{shown}",
        body.len()
    )
}

/// Reads the head of a request; requests here have no body.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Hit> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|&n| n > 0)?;
    let mut words = line.split_whitespace();
    let method = words.next()?.to_owned();
    let target = words.next()?.trim_start_matches('/').to_owned();
    let mut hit = Hit {
        target,
        token: 0,
        method,
        conditional: false,
        began_ms: 0,
        ended_ms: u64::MAX,
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|&n| n > 0)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            return Some(hit);
        }
        if let Some(token) = line.strip_prefix("x-leasehold-fence:") {
            hit.token = token.trim().parse().unwrap_or(0);
        }
        hit.conditional |= line.starts_with("if-none-match:");
    }
}

/// What is wrong with what was seen: polls of one target that overlap, tokens that went back, or
/// requests without one.
pub fn faults(hits: &[Hit]) -> Vec<String> {
    let mut by_target: BTreeMap<&str, Vec<&Hit>> = BTreeMap::new();
    for hit in hits {
        by_target.entry(&hit.target).or_default().push(hit);
    }
    let mut faults = Vec::new();
    for hits in by_target.values_mut() {
        hits.sort_by_key(|hit| (hit.began_ms, hit.token));
        for pair in hits.windows(2) {
            if pair[1].began_ms < pair[0].ended_ms && pair[0].ended_ms != u64::MAX {
                faults.push(format!("overlap: {} and {}", pair[0], pair[1]));
            }
            if pair[1].token < pair[0].token {
                faults.push(format!("stale token: {} after {}", pair[1], pair[0]));
            }
        }
        let bare = hits.iter().filter(|hit| hit.token == 0);
        faults.extend(bare.map(|hit| format!("without a token: {hit}")));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(target: &str, token: u64, began_ms: u64, ended_ms: u64) -> Hit {
        Hit {
            target: target.to_owned(),
            token,
            method: "GET".to_owned(),
            conditional: false,
            began_ms,
            ended_ms,
        }
    }

    #[test]
    fn overlaps_stale_tokens_and_missing_tokens_are_found() {
        let fine = [
            hit("a", 1, 0, 5),
            hit("a", 1, 5, 9),
            hit("a", 2, 10, 12),
            hit("b", 1, 3, 4),
        ];
        assert_eq!(faults(&fine), Vec::<String>::new());
        assert_eq!(faults(&[hit("a", 1, 0, 5), hit("a", 1, 4, 9)]).len(), 1);
        assert_eq!(faults(&[hit("a", 2, 0, 5), hit("a", 1, 6, 9)]).len(), 1);
        assert_eq!(faults(&[hit("a", 0, 0, 5)]).len(), 1);
        let shown = hit("a", 1, 0, 5);
        assert_eq!(Hit::parse(&shown.to_string()), Some(shown));
    }
}
