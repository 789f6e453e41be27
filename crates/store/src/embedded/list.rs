//! Pages of live leases. The order of the keys comes from the tables, so that the writer is asked only
//! for the leases of one page, however many there are.

use lease::{Error, Key, Lease, LeaseQuery, Page, Status, engine::Engine};

use super::{Embedded, history};

/// How many keys are looked at in one go.
pub(super) const STEP: usize = 1_000;
/// The same when a page is small: filters may leave out most of it.
const SMALL_STEP: usize = 200;

/// Live and pending leases in the order of their keys.
pub(super) async fn live(store: &Embedded, query: LeaseQuery) -> Result<Page<Lease>, Error> {
    // The engine finds a key's lease and a holder's leases directly, and knows alone who waits.
    let one_key = query.kind.is_some() && query.id.is_some();
    if one_key || query.holder.is_some() || query.status == Some(Status::Pending) {
        // Renewals ask for a holder's leases too: they do not queue up behind those who read everything.
        let permits = if query.holder.is_some() || one_key {
            &store.shared.holder_pages
        } else {
            &store.shared.pages
        };
        return store
            .read_in(permits, move |engine, now| engine.leases(now, &query))
            .await;
    }
    // One more than asked for says whether there is more.
    let step = query.limit.saturating_add(1).clamp(SMALL_STEP, STEP);
    let mut items: Vec<Lease> = Vec::new();
    let mut after = query.after.clone();
    loop {
        let (asked, from) = (query.clone(), after.clone());
        let recent = store.shared.recent.clone();
        let keys = store
            .readers()
            .read(move |connection| {
                history::live_keys(connection, &recent, &asked, from.as_ref(), step)
            })
            .await?;
        let last = (keys.len() == step).then(|| keys.last().cloned()).flatten();
        let (asked, from, to) = (query.clone(), after.take(), last.clone());
        let found = store
            .read_page(move |engine, now| {
                let mut found = pending(engine, now, &asked, from.as_ref(), to.as_ref());
                let live = keys.iter().filter_map(|key| engine.lease(now, key));
                found.extend(live.filter(|lease| asked.matches(lease)));
                found
            })
            .await?;
        items.extend(found);
        let Some(last) = last else {
            return Ok(query.page(items));
        };
        // What is on a page may reach beyond its limit, to the end of a key: only when something is
        // left over is it certain that the page is whole.
        if items.len() > query.limit {
            let page = query.page(items);
            if page.more {
                return Ok(page);
            }
            items = page.items;
        }
        after = Some(last);
    }
}

/// Who waits for keys after `from`, up to and with `to`.
fn pending(
    engine: &Engine,
    now: lease::UnixMillis,
    query: &LeaseQuery,
    from: Option<&Key>,
    to: Option<&Key>,
) -> Vec<Lease> {
    if query.status == Some(Status::Active) || engine.waiting_count() == 0 {
        return Vec::new();
    }
    let waits = LeaseQuery {
        status: Some(Status::Pending),
        after: from.cloned(),
        limit: usize::MAX,
        ..query.clone()
    };
    let mut waits = engine.leases(now, &waits).items;
    waits.retain(|lease| to.is_none_or(|to| lease.key <= *to));
    waits
}
