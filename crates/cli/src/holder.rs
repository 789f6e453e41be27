//! Who this process is when it owns something.

use lease::{Holder, HolderName, Incarnation, Invalid};
use leasehold_clock::{Clock, System};

/// A holder with this name, or with one made from the host, and a new incarnation.
pub fn this_process(name: Option<&str>) -> Result<Holder, Invalid> {
    let name = match name {
        Some(name) => HolderName::new(name)?,
        None => HolderName::new(default_name())?,
    };
    // Unique on one machine by the process id and the time, and the name has the machine in it.
    let incarnation = format!("{:x}-{}", System.unix().get(), std::process::id());
    Ok(Holder {
        name,
        incarnation: Incarnation::new(incarnation)?,
    })
}

/// `run@host`: says where to look.
pub fn default_name() -> String {
    match host() {
        Some(host) => format!("cli@{host}"),
        None => "cli".to_owned(),
    }
}

/// The name of this machine, if it has one.
pub fn host() -> Option<String> {
    let host = nix::unistd::gethostname().ok()?.into_string().ok()?;
    let host: String = host
        .chars()
        .filter(|c| !c.is_control() && !c.is_whitespace())
        .take(200)
        .collect();
    (!host.is_empty()).then_some(host)
}
