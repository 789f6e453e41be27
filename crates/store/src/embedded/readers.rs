//! Reading beside the writer: what is durable, and nothing else.

use std::sync::{Arc, Mutex, PoisonError};

use lease::Error;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{journal::Failure, location::Location};

/// How many reads run concurrently: more would only fight for the disk.
const CONCURRENT: usize = 4;

/// A few connections that only read.
#[derive(Clone)]
pub(super) struct Readers {
    location: Location,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub fn new(location: Location) -> Self {
        Self {
            location,
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(CONCURRENT)),
        }
    }

    /// Runs `read` on a connection, in one transaction, so that it sees one moment.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let permit = self
            .permits
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Error::Unavailable("the store is closed".into()))?;
        let (location, idle) = (self.location.clone(), self.idle.clone());
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match kept {
                Some(connection) => connection,
                None => location.connect_to_read()?,
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
        self.permits.close();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
