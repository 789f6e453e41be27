//! Many tokens at once, judged by the server itself.
//!
//! For receivers that have no place of their own to remember tokens in, and for those that restart and
//! want to know where things stand. Between the answer and what is done with it somebody may become the
//! owner: whoever needs the last word keeps a fence where the effect is.

use leasehold_api::{FenceCheck, FencedToken, VerdictWord};
use leasehold_client::{Client, Error};

/// Messages, sorted by what their tokens are worth.
#[derive(Debug)]
pub struct Screened<M> {
    /// Came from the newest owner of their key, in the order of arrival.
    pub fresh: Vec<M>,
    /// Came from somebody who is not the owner any more, or never was.
    pub stale: Vec<M>,
}

/// Asks the server about all messages in as few calls as possible.
///
/// A lease that is over while nobody has the key since is still fresh: its last owner finished late,
/// and nobody is there to disagree.
pub async fn screen<M>(
    client: &Client,
    messages: Vec<M>,
    token: impl Fn(&M) -> (lease::Key, lease::Token),
) -> Result<Screened<M>, Error> {
    let mut verdicts = Vec::with_capacity(messages.len());
    let tokens: Vec<FencedToken> = messages
        .iter()
        .map(|message| {
            let (key, token) = token(message);
            FencedToken {
                kind: key.kind().to_owned(),
                id: key.id().to_owned(),
                token: token.get(),
            }
        })
        .collect();
    for tokens in tokens.chunks(FenceCheck::MAX_TOKENS) {
        let tokens = tokens.to_vec();
        let answer = client.check_fences(&FenceCheck { tokens }).await?;
        verdicts.extend(answer.results.into_iter().map(|result| result.verdict));
    }
    let mut screened = Screened {
        fresh: Vec::new(),
        stale: Vec::new(),
    };
    for (message, verdict) in messages.into_iter().zip(verdicts) {
        match verdict {
            VerdictWord::Current | VerdictWord::Ended => screened.fresh.push(message),
            VerdictWord::Stale | VerdictWord::Unknown => screened.stale.push(message),
        }
    }
    Ok(screened)
}
