//! Lists that come in pages.

use ::lease::RecordQuery;
use serde::{Deserialize, de::DeserializeOwned};
use utoipa::IntoParams;

use super::leases::{from_cursor, tenant, to_cursor};
use crate::{
    App, Reject,
    auth::Caller,
    query::{MAX_OFFSET, page_limit},
    registry::{
        SiteId,
        items::Item,
        store::{self, Found},
    },
};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Pages {
    /// At most this many: 1 to 1000, 100 when absent.
    pub limit: Option<usize>,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// Leave out this many at the beginning: at most 100000. A cursor costs less.
    pub offset: Option<usize>,
}

impl Pages {
    /// The page of what a site has, and the cursor of the next.
    pub async fn of_site<T: Item>(
        self,
        app: &App,
        place: &SiteId,
    ) -> Result<(Vec<Found<T>>, Option<String>), Reject> {
        self.of_site_where(app, place, |_| true).await
    }

    /// The same, of what is wanted.
    pub async fn of_site_where<T: Item>(
        self,
        app: &App,
        place: &SiteId,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<(Vec<Found<T>>, Option<String>), Reject> {
        let limit = page_limit(self.limit)?;
        let left_out = self.offset.unwrap_or(0);
        if left_out > MAX_OFFSET {
            return Err(Reject::field("offset", "0 to 100000"));
        }
        let query = RecordQuery {
            kind: T::KIND.to_owned(),
            prefix: place.prefix(),
            after: after(self.cursor.as_deref())?,
            limit,
        };
        filtered(app, query, left_out, wanted).await
    }
}

/// The first documents that are wanted, but for `left_out` of them, and the cursor of the next page.
pub(super) async fn filtered<T: DeserializeOwned>(
    app: &App,
    mut query: RecordQuery,
    mut left_out: usize,
    wanted: impl Fn(&T) -> bool,
) -> Result<(Vec<Found<T>>, Option<String>), Reject> {
    let limit = query.limit;
    query.limit = left_out.saturating_add(limit);
    let mut items: Vec<Found<T>> = Vec::new();
    let mut pages = leasehold_client::pages::Pages::new(app.authority(), query);
    while items.len() < limit
        && let Some(page) = pages.next().await?
    {
        for record in page {
            let it = store::read(record)?;
            if !wanted(&it.value) {
                continue;
            }
            match left_out.checked_sub(1) {
                Some(rest) => left_out = rest,
                None => items.push(it),
            }
        }
    }
    let more = pages.has_more() || items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| more);
    let next_cursor = last.map(|it| to_cursor(&it.key));
    Ok((items, next_cursor))
}

/// The page of a list that may be cut down to a tenant or a site.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only this tenant.
    tenant_id: Option<String>,
    /// Only this site of the tenant.
    site_id: Option<String>,
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
}

impl Filter {
    /// What to read of a kind, and the tenant it is cut down to: the caller's own, or the one it asked for.
    pub fn query(
        self,
        caller: &Caller,
        kind: &str,
    ) -> Result<(RecordQuery, Option<String>), Reject> {
        let tenant_id = tenant(caller, self.tenant_id)?;
        let query = RecordQuery {
            kind: kind.to_owned(),
            prefix: prefix(tenant_id.as_deref(), self.site_id.as_deref())?,
            after: after(self.cursor.as_deref())?,
            limit: page_limit(self.limit)?,
        };
        Ok((query, tenant_id))
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
fn prefix(tenant: Option<&str>, site: Option<&str>) -> Result<String, Reject> {
    match (tenant, site) {
        (None, None) => Ok(String::new()),
        (None, Some(site)) => {
            SiteId::new("-", site)?;
            Err(Reject::field("tenant_id", "the tenant of the site"))
        }
        (Some(tenant), None) => {
            SiteId::new(tenant, "-")?;
            Ok(format!("{tenant}/"))
        }
        (Some(tenant), Some(site)) => Ok(SiteId::new(tenant, site)?.prefix()),
    }
}
