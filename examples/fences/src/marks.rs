//! The newest token of each key that a service has seen.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use lease::{Key, Token};

use crate::Rejection;

/// How many keys are remembered at most, unless told otherwise. A mark cannot be forgotten without
/// opening the fence, so beyond this new keys are refused.
const MAX_KEYS: usize = 100_000;

/// The newest token of each key. Clones share it.
///
/// It lives in memory: a service that restarts either fills it again with [`Marks::restore`], from where
/// it keeps its data, or keeps its fence there in the first place.
#[derive(Clone, Debug)]
pub struct Marks {
    places: Arc<Mutex<HashMap<Key, Arc<Place>>>>,
    max_keys: usize,
}

/// One key's mark, and whose turn it is to write.
#[derive(Debug, Default)]
pub(crate) struct Place {
    newest: AtomicU64,
    /// Held while the write is under way: a newer owner's write must come after an older one that was
    /// let in already, not beside it. Only requests for the same key wait for each other.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

impl Default for Marks {
    fn default() -> Self {
        Self::with_room_for(MAX_KEYS)
    }
}

impl Marks {
    /// No tokens yet, and room for so many keys.
    pub fn with_room_for(max_keys: usize) -> Self {
        Self {
            places: Arc::default(),
            max_keys,
        }
    }

    /// Remembers a token from an earlier life of the service. An older one than is known changes
    /// nothing.
    pub fn restore(&self, key: Key, token: Token) -> Result<(), Rejection> {
        let place = self.place(key)?;
        place.newest.fetch_max(token.get(), Ordering::AcqRel);
        Ok(())
    }

    /// The newest token of every key, to be kept for the next life.
    pub fn all(&self) -> Vec<(Key, Token)> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .iter()
            .map(|(key, place)| (key.clone(), place.newest()))
            .collect()
    }

    pub(crate) fn place(&self, key: Key) -> Result<Arc<Place>, Rejection> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get(&key) {
            return Ok(place.clone());
        }
        if places.len() >= self.max_keys {
            return Err(Rejection::Full);
        }
        Ok(places.entry(key).or_default().clone())
    }
}

impl Place {
    /// Lets a token pass, or tells the newer one.
    pub(crate) fn pass(&self, token: Token) -> Result<(), Token> {
        let newest = self.newest.fetch_max(token.get(), Ordering::AcqRel);
        if newest > token.get() {
            return Err(self.newest());
        }
        Ok(())
    }

    fn newest(&self) -> Token {
        // Only tokens were ever put in.
        Token::new(self.newest.load(Ordering::Acquire)).unwrap_or(Token::MAX)
    }
}
