//! Reading beside the writer: what is durable, and nothing else.

use std::sync::{Arc, Mutex, PoisonError};

use lease::Error;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{journal::Failure, location::Location};

/// How many reads run at once: more would only fight for the disk.
const AT_ONCE: usize = 4;

/// A few connections that only read.
#[derive(Clone)]
pub(super) struct Readers {
    place: Location,
    idle: Arc<Mutex<Vec<Connection>>>,
    room: Arc<Semaphore>,
}

impl Readers {
    pub fn new(place: Location) -> Self {
        Self {
            place,
            idle: Arc::default(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Runs `read` on a connection, in one transaction, so that it sees one moment.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let room = self
            .room
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Error::Unavailable("the store is closed".into()))?;
        let (place, idle) = (self.place.clone(), self.idle.clone());
        let done = tokio::task::spawn_blocking(move || {
            let _room = room;
            let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match kept {
                Some(connection) => connection,
                None => place.connect_to_read()?,
            };
            let transaction = connection.transaction()?;
            let value = read(&transaction)?;
            transaction.finish()?;
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
            Ok(value)
        });
        match done.await {
            Ok(result) => result.map_err(|failure: Failure| Error::Broken(failure.to_string())),
            Err(_) => Err(Error::Unknown("the read was cut short".into())),
        }
    }

    /// Lets go of the files.
    pub fn close(&self) {
        self.room.close();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
