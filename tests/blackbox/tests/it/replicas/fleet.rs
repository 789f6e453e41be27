//! Three `leasehold serve` processes on one store.

use std::{net::SocketAddr, time::Duration};

use leasehold_client::{Client, Options, Remote};
use leasehold_testkit::{Child, Dir, port};

use crate::cli_support::{SOON, plain, run};

/// How long one call of a client may take: short, so that faults are felt.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// One process.
pub struct Replica {
    dir: Dir,
    address: SocketAddr,
    child: Child,
}

impl Replica {
    async fn start(store: &str) -> Self {
        let dir = Dir::new("replica");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let child = spawn(&dir, address, store);
        let mut replica = Self {
            dir,
            address,
            child,
        };
        replica.child.wait_for_line("listening on", SOON).await;
        replica
    }

    fn remote(&self) -> Remote {
        Remote::new(self.client())
    }

    pub fn client(&self) -> Client {
        let token = std::fs::read_to_string(self.dir.join("data/admin.token")).expect("made");
        let mut options = Options::new(format!("http://{}", self.address)).token(token.trim());
        options.limit = CALL_LIMIT;
        Client::new(options).expect("a client")
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Stops it gracefully.
    pub async fn stop(&mut self) {
        self.child.sigterm();
        let status = self.child.wait(SOON).await;
        assert!(status.success(), "{}", self.child.tail());
    }

    pub async fn start_again(&mut self, store: &str) {
        self.child = spawn(&self.dir, self.address, store);
        self.child.wait_for_line("listening on", SOON).await;
    }

    /// What `leasehold doctor` says on its machine.
    pub async fn doctor(&self) -> String {
        let data = self.dir.join("data").display().to_string();
        run(&["doctor"], &[("LEASEHOLD_DATA_DIR", data)])
            .await
            .stdout
    }
}

fn spawn(dir: &Dir, address: SocketAddr, store: &str) -> Child {
    plain(&["serve", "--log", "warn", "--store", store])
        .args(["--listen", &address.to_string(), "--data-dir"])
        .arg(dir.join("data"))
        .spawn()
}

/// All three.
pub struct Fleet {
    store: String,
    pub replicas: Vec<Replica>,
}

impl Fleet {
    pub async fn start(store: &str) -> Self {
        let mut replicas = Vec::new();
        for _ in 0..3 {
            replicas.push(Replica::start(store).await);
        }
        Self {
            store: store.to_owned(),
            replicas,
        }
    }

    /// A way to each.
    pub fn remotes(&self) -> Vec<Remote> {
        self.replicas.iter().map(Replica::remote).collect()
    }

    /// Kills some at once, and starts them again after a while.
    pub async fn kill(&mut self, numbers: &[usize], down: Duration) {
        for &number in numbers {
            self.replicas[number].child.kill9();
        }
        tokio::time::sleep(down).await;
        for &number in numbers {
            let replica = &mut self.replicas[number];
            replica.child = spawn(&replica.dir, replica.address, &self.store);
        }
        for &number in numbers {
            let child = &mut self.replicas[number].child;
            child.wait_for_line("listening on", SOON).await;
        }
    }

    /// Whether all of them still run: no fault of the database ends a server.
    pub fn all_run(&mut self) -> bool {
        self.replicas
            .iter_mut()
            .all(|replica| replica.child.is_running())
    }
}
