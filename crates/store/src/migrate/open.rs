//! From a URL to an end of a move.

use super::{Error, Import, Maintenance, Side};
use crate::{OpenError, StoreUrl, embedded, postgres, redis};

/// Opens an end. A target is made ready to be written to, unless this is only a look.
pub(super) async fn open(
    url: &StoreUrl,
    side: Side,
    dry_run: bool,
) -> Result<Box<dyn Import>, Error> {
    let create = side == Side::Target && !dry_run;
    let failed = |error: lease::Error| Error::Open(side, OpenError::Store(error));
    let backend: Option<Box<dyn Import>> = match url {
        StoreUrl::Memory => return Err(Error::Memory),
        StoreUrl::Embedded(dir) => {
            let to = match side {
                _ if dry_run => embedded::Use::Look {
                    target: side == Side::Target,
                },
                Side::Source => embedded::Use::Source,
                Side::Target => embedded::Use::Target,
            };
            let opened = embedded::Endpoint::open(dir.clone(), to).await;
            let opened = opened.map_err(|error| Error::Open(side, OpenError::Embedded(error)))?;
            opened.map(|site| Box::new(site) as _)
        }
        StoreUrl::Postgres(options) => {
            let opened =
                postgres::Endpoint::open((**options).clone(), create, side == Side::Target);
            let opened = opened.await.map_err(failed)?;
            opened.map(|site| Box::new(site) as _)
        }
        StoreUrl::Redis(url) => {
            let options = redis::Options::parse(url).map_err(|error| failed(error.into()))?;
            let opened = redis::Endpoint::open(options, side == Side::Target).await;
            opened.map_err(failed)?.map(|site| Box::new(site) as _)
        }
    };
    backend.ok_or(Error::NoStore)
}

/// Whether a store is closed to servers. Looks, and changes nothing.
pub(crate) async fn maintenance_of(url: &StoreUrl) -> Result<Option<Maintenance>, OpenError> {
    match url {
        StoreUrl::Memory => Ok(None),
        StoreUrl::Embedded(dir) => Ok(embedded::maintenance_in(dir)?),
        StoreUrl::Postgres(options) => Ok(postgres::maintenance_in(options).await?),
        StoreUrl::Redis(url) => {
            let options = redis::Options::parse(url).map_err(lease::Error::from)?;
            Ok(redis::maintenance_in(&options).await?)
        }
    }
}
