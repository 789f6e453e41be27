//! Wrong credentials: logged, and answered late when they are many.

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use leasehold_api::Code;
use tokio::{sync::Semaphore, time::sleep};

use crate::{Reject, problem::RETRY_SOON};

/// How many wrong credentials an address may send before it is slowed; one is forgotten per second.
const BURST: NonZeroU32 = NonZeroU32::new(20).expect("not zero");
/// How long the answer to a further one takes.
const DELAY: Duration = Duration::from_millis(500);
/// How many answers are delayed at the same time; beyond that they are refused immediately.
const DELAYED: usize = 64;
/// How many addresses are remembered before those that are quiet are forgotten.
const ADDRESSES: usize = 10_000;

/// Wrong credentials, by the address that sent them.
pub(crate) struct Failures {
    rate: DefaultKeyedRateLimiter<IpAddr>,
    delayed: Semaphore,
}

impl Default for Failures {
    fn default() -> Self {
        let quota = Quota::per_second(NonZeroU32::MIN).allow_burst(BURST);
        Self {
            rate: RateLimiter::keyed(quota),
            delayed: Semaphore::new(DELAYED),
        }
    }
}

impl Failures {
    /// A wrong credential came from this address: logs it, and takes its time when it is one of many.
    pub async fn note(&self, client: IpAddr, failure: Reject) -> Reject {
        if self.rate.check_key(&client).is_ok() {
            tracing::info!(%client, "wrong credential");
            return failure;
        }
        tracing::debug!(%client, "wrong credential, one of many");
        if self.rate.len() > ADDRESSES {
            self.rate.retain_recent();
        }
        let Ok(_permit) = self.delayed.try_acquire() else {
            return Reject::new(Code::RateLimited, "too many wrong credentials")
                .retry_after(RETRY_SOON);
        };
        sleep(DELAY).await;
        failure
    }
}
