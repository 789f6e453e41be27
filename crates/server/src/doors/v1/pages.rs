//! Lists that come in pages.

use ::lease::RecordQuery;
use serde::{Deserialize, de::DeserializeOwned};
use utoipa::IntoParams;

use super::leases::{from_cursor, to_cursor};
use crate::{
    App, Reject,
    query::page_limit,
    registry::{
        Place,
        items::Item,
        store::{self, Found},
    },
};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Pages {
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
}

impl Pages {
    /// The page of what a site has, and the cursor of the next.
    pub async fn of_site<T: Item>(
        self,
        app: &App,
        place: &Place,
    ) -> Result<(Vec<Found<T>>, Option<String>), Reject> {
        let query = RecordQuery {
            kind: T::KIND.to_owned(),
            prefix: place.prefix(),
            after: after(self.cursor.as_deref())?,
            limit: page_limit(self.limit)?,
        };
        page(app, query).await
    }
}

/// A page of documents, and the cursor of the next.
pub(super) async fn page<T: DeserializeOwned>(
    app: &App,
    query: RecordQuery,
) -> Result<(Vec<Found<T>>, Option<String>), Reject> {
    let (found, more) = store::page(app.authority(), query).await?;
    let last = found.last().filter(|_| more);
    let next_cursor = last.map(|it: &Found<T>| to_cursor(&it.key));
    Ok((found, next_cursor))
}

/// The id after which a page begins.
pub(super) fn after(cursor: Option<&str>) -> Result<Option<String>, Reject> {
    let key = cursor.map(from_cursor).transpose()?;
    Ok(key.map(|key| key.id().to_owned()))
}

/// What the ids of everything in a tenant or a site begin with.
pub(super) fn prefix(tenant: Option<&str>, site: Option<&str>) -> Result<String, Reject> {
    match (tenant, site) {
        (None, None) => Ok(String::new()),
        (None, Some(_)) => Err(Reject::field("tenant_id", "the tenant of the site")),
        (Some(tenant), None) => {
            Place::new(tenant, "-")?;
            Ok(format!("{tenant}/"))
        }
        (Some(tenant), Some(site)) => Ok(Place::new(tenant, site)?.prefix()),
    }
}
