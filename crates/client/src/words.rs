//! Words for people.

use lease::Cause;

/// What stood in the way of a grant.
pub(crate) fn cause(cause: &Cause) -> String {
    match cause {
        // Its own other holding: it stays as long as it is kept.
        Cause::Held {
            holder, left_ms: 0, ..
        } => format!("held by {}", holder.name),
        Cause::Held {
            holder, left_ms, ..
        } => format!("held by {} for another {left_ms} ms", holder.name),
        Cause::Limit { limit } => format!("the holder has its {limit} already"),
        Cause::QueueFull => "too many are waiting for it".into(),
        Cause::TokensExhausted => "its tokens are used up".into(),
    }
}
