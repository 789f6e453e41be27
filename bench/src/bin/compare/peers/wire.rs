//! One connection of the driver: bytes out, bytes in, and no more.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A connection with what came and was not used yet.
pub struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    used: usize,
    /// Where every byte, sent or received, is counted too.
    pub counted: Option<Arc<AtomicU64>>,
}

impl Wire {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            input: Vec::with_capacity(16 * 1024),
            used: 0,
            counted: None,
        })
    }

    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.count(bytes.len());
        Ok(self.stream.write_all(bytes).await?)
    }

    fn count(&self, bytes: usize) {
        if let Some(counted) = &self.counted {
            counted.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// What came and was not used yet.
    pub fn input(&self) -> &[u8] {
        &self.input[self.used..]
    }

    /// This much of it was understood.
    pub fn advance(&mut self, bytes: usize) {
        self.used += bytes;
        if self.used == self.input.len() {
            self.input.clear();
            self.used = 0;
        }
    }

    /// Waits for more.
    pub async fn fill(&mut self) -> Result<()> {
        if self.used > 64 * 1024 {
            self.input.drain(..self.used);
            self.used = 0;
        }
        let read = self.stream.read_buf(&mut self.input).await?;
        ensure!(read > 0, "the server closed a connection");
        self.count(read);
        Ok(())
    }
}
