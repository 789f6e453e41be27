//! Renewing leases.

use std::collections::HashSet;

use lease::{
    Holder, Kept, Key, Lease, LeaseQuery, Loss, Renew, Renewal, Renewals, Renewed, polling::NODE,
};

use leasehold_client::pages::Pages;

use super::{may_own, measured};
use crate::{App, Reject, auth::Caller};

/// Keeps leases. A caller that is bound to a tenant reaches only that tenant's leases; any other one
/// is unknown to it.
pub(crate) async fn renew(
    app: &App,
    caller: &Caller,
    request: Renew,
) -> Result<Vec<Renewed>, Reject> {
    request.validate()?;
    if let Renewals::These(renewals) = &request.leases {
        // A presence that was announced at `/holders` is kept like any other lease.
        let keys = renewals.iter().map(|renewal| &renewal.key);
        may_own(caller, keys.filter(|key| key.kind() != NODE))?;
    }
    let Some(tenant) = caller.tenant.as_deref() else {
        return renew_all(app, request).await;
    };
    let own = live_of(app, &request.holder, Some(tenant)).await?;
    let asked = match request.leases {
        Renewals::All => own.iter().map(Renewal::of).collect(),
        Renewals::These(renewals) => renewals,
    };
    let own: HashSet<Key> = own.into_iter().map(|lease| lease.key).collect();
    let mine: Vec<bool> = asked.iter().map(|it| own.contains(&it.key)).collect();
    let foreign: Vec<Renewed> = asked
        .iter()
        .zip(&mine)
        .filter(|(_, mine)| !**mine)
        .map(|(it, _)| Renewed {
            key: it.key.clone(),
            token: it.token,
            outcome: Err(Loss::Unknown),
        })
        .collect();
    let keep = asked
        .into_iter()
        .zip(&mine)
        .filter_map(|(it, mine)| mine.then_some(it))
        .collect();
    let kept = renew_all(
        app,
        Renew {
            holder: request.holder,
            leases: Renewals::These(keep),
        },
    )
    .await?;
    // Back into the order of the request.
    let (mut kept, mut foreign) = (kept.into_iter(), foreign.into_iter());
    Ok(mine
        .into_iter()
        .filter_map(|mine| if mine { kept.next() } else { foreign.next() })
        .collect())
}

/// Keeps everything that a holder has, with one answer for all of it.
pub(crate) async fn keep(app: &App, caller: &Caller, holder: Holder) -> Result<Kept, Reject> {
    if caller.tenant.is_some() {
        // What a namesake has in another tenant is not this caller's, so its own leases are named.
        let leases = Renewals::All;
        let answers = renew(app, caller, Renew { holder, leases }).await?;
        return Ok(Kept::from(answers));
    }
    let word = |kept: &Kept| if kept.lost.is_empty() { "kept" } else { "lost" };
    let kept = measured(app, "renew", word, app.authority().keep(holder)).await?;
    app.metrics().renewed(kept.leases);
    Ok(kept)
}

async fn renew_all(app: &App, request: Renew) -> Result<Vec<Renewed>, Reject> {
    let mut kept = 0;
    let word = |renewed: &Vec<Renewed>| {
        kept = renewed.iter().filter(|it| it.outcome.is_ok()).count();
        if kept == renewed.len() {
            "kept"
        } else {
            "lost"
        }
    };
    let answers = measured(app, "renew", word, app.authority().renew(request)).await?;
    app.metrics().renewed(kept as u64);
    Ok(answers)
}

/// The live leases of one holder, all pages.
pub(crate) async fn live_of(
    app: &App,
    holder: &lease::Holder,
    tenant: Option<&str>,
) -> Result<Vec<Lease>, Reject> {
    let query = LeaseQuery {
        holder: Some(holder.name.clone()),
        status: Some(lease::Status::Active),
        tenant: tenant.map(str::to_owned),
        ..LeaseQuery::default()
    };
    let own = |lease: Lease| (lease.holder == *holder).then_some(lease);
    // As many as one renewal may name.
    let mut pages = Pages::new(app.authority(), query);
    Ok(pages.select(Renew::MAX_LEASES, own).await?)
}

/// Keeps one lease that was found by its id.
pub(crate) async fn renew_one(app: &App, lease: &Lease, renewal: Renewal) -> Result<Lease, Reject> {
    let request = Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![renewal]),
    };
    let outcome = renew_all(app, request).await?.pop().map(|it| it.outcome);
    match outcome {
        Some(Ok(lease)) => Ok(lease),
        // The history may remember the end of a lease that its key no longer does.
        Some(Err(Loss::Unknown)) | None => Err(Reject::lost(&Loss::from_status(lease.status))),
        Some(Err(loss)) => Err(Reject::lost(&loss)),
    }
}
