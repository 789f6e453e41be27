//! Work for readers, on threads of their own at low priority. What they request may be large, and is read, assembled
//! and serialised here, so that holders do not wait for it.

use std::{future::Future, sync::LazyLock};

use leasehold_api::Code;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::Reject;

/// As many as may read at the same time; the system decides how much of it they get.
const THREADS: usize = 2;
/// How much lower than holders they stand. Not the lowest: a reader that holds a lock for a moment is waited for.
const NICE: i32 = 5;

/// One set for the process: its threads end with it.
static READERS: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let built = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("readers")
        .on_thread_start(|| {
            // On Linux a priority is the thread's own.
            let _ = rustix::process::nice(NICE);
        })
        .enable_all()
        .build();
    built
        .inspect_err(|error| tracing::warn!(%error, "readers have no threads of their own"))
        .ok()
});

fn threads() -> Handle {
    let own = READERS.as_ref().map(|runtime| runtime.handle().clone());
    own.unwrap_or_else(Handle::current)
}

/// Runs this on the readers' threads. Ends when its caller goes away.
pub(crate) async fn run<T: Send + 'static>(
    work: impl Future<Output = Result<T, Reject>> + Send + 'static,
) -> Result<T, Reject> {
    let work = AbortOnDropHandle::new(threads().spawn(work));
    work.await.unwrap_or_else(|_| {
        let text = "something is wrong on the server";
        Err(Reject::new(Code::InternalError, text))
    })
}

/// Does this on the readers' threads, to its own end.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    threads().spawn(work);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_for_readers_is_done_on_threads_of_low_priority() {
        let own = rustix::process::nice(0).unwrap();
        let (name, nice) = run(async {
            let name = std::thread::current().name().map(str::to_owned);
            Ok((name, rustix::process::nice(0).unwrap()))
        })
        .await
        .unwrap();
        assert_eq!(name.as_deref(), Some("readers"));
        assert!(nice > own || nice == 19, "{nice} is not below {own}");
        assert_eq!(rustix::process::nice(0).unwrap(), own, "only theirs");
    }
}
