//! The work, one file each. Each starts the servers it needs, and ends them.

mod fleet;
mod w1;
mod w2;
pub mod w3;
mod w4;
mod w5;
mod w6;
mod w7;
mod w8;
mod w9;

use anyhow::{Result, bail};
use leasehold_bench::{
    rounds::{Callers, Side, driver},
    usage::Processes,
};
use tokio::runtime::Handle;

use crate::{Plan, results::Results};

/// All of it, in order.
pub const ALL: [&str; 9] = ["W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9"];

/// What each is.
pub fn title(work: &str) -> &'static str {
    match work {
        "W1" => "acquire and release, on 100,000 keys",
        "W2" => "renew held leases",
        "W3" => "64 clients on 10 keys held for 1 ms",
        "W4" => "memory per lease",
        "W5" => "how late 10,000 simultaneous expiries are seen",
        "W6" => "from SIGKILL of the holder to the next one, ttl 5 s",
        "W7" => "200 holders with 500 leases each at a ttl of 10 s",
        "W8" => "growth of cost with the number of leases",
        "W9" => "growth of cost with the number of holders",
        _ => "",
    }
}

/// Does one.
pub async fn run(work: &str, plan: &Plan, results: &mut Results) -> Result<()> {
    match work {
        "W1" => w1::run(plan, results).await,
        "W2" => w2::run(plan, results).await,
        "W3" => w3::run(plan, results).await,
        "W4" => w4::run(plan, results).await,
        "W5" => w5::run(plan, results).await,
        "W6" => w6::run(plan, results).await,
        "W7" => w7::run(plan, results).await,
        "W8" => w8::run(plan, results).await,
        "W9" => w9::run(plan, results).await,
        other => bail!("there is no {other}"),
    }
}

/// Collects the sides of one comparison.
struct Sides<'a> {
    plan: &'a Plan,
    sides: Vec<Side>,
}

impl<'a> Sides<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            sides: Vec::new(),
        }
    }

    /// A side that talks over sockets: its callers are made and run where the driver is.
    async fn over_sockets<F>(
        &mut self,
        name: &str,
        server: Processes,
        operations: usize,
        callers: F,
    ) -> Result<()>
    where
        F: Future<Output = Result<Callers>>,
    {
        self.add(name, server, operations, driver(), callers).await
    }

    /// A side whose client library has threads of its own, or whose store is in this process.
    async fn inside<F>(
        &mut self,
        name: &str,
        server: Processes,
        operations: usize,
        callers: F,
    ) -> Result<()>
    where
        F: Future<Output = Result<Callers>>,
    {
        self.add(name, server, operations, Handle::current(), callers)
            .await
    }

    async fn add<F>(
        &mut self,
        name: &str,
        server: Processes,
        operations: usize,
        runtime: Handle,
        callers: F,
    ) -> Result<()>
    where
        F: Future<Output = Result<Callers>>,
    {
        if !self.plan.wants(name) {
            return Ok(());
        }
        let callers = match entered(runtime.clone(), callers).await {
            Ok(callers) => callers,
            // The others are still worth having.
            Err(error) => {
                eprintln!("{name} is left out: {error:#}");
                return Ok(());
            }
        };
        self.sides.push(Side {
            name: name.to_owned(),
            callers,
            operations: operations as u64,
            server,
            runtime,
        });
        Ok(())
    }
}

/// Does something as if in another runtime: sockets and their tasks belong to the one in which they are
/// made.
fn entered<F: Future>(runtime: Handle, future: F) -> Entered<F> {
    Entered {
        runtime,
        future: Box::pin(future),
    }
}

/// A future that is polled as if another runtime did.
struct Entered<F> {
    runtime: Handle,
    future: std::pin::Pin<Box<F>>,
}

impl<F: Future> Future for Entered<F> {
    type Output = F::Output;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<F::Output> {
        let runtime = self.runtime.clone();
        let _entered = runtime.enter();
        self.future.as_mut().poll(context)
    }
}
