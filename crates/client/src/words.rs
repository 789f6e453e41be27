//! Words for people.

use lease::Cause;

/// What stood in the way of a grant.
pub(crate) fn cause(cause: &Cause) -> String {
    match cause {
        Cause::Held {
            holder, left_ms, ..
        } => format!("held by {} for another {left_ms} ms", holder.name),
        Cause::Limit { limit } => format!("the holder has its {limit} already"),
        Cause::QueueFull => "too many are waiting for it".into(),
        Cause::TokensExhausted => "its tokens are used up".into(),
    }
}
