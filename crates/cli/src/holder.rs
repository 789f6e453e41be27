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
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|host| host.into_string().ok())
        .unwrap_or_default();
    let host: String = host
        .chars()
        .filter(|c| !c.is_control() && !c.is_whitespace())
        .take(200)
        .collect();
    if host.is_empty() {
        "cli".to_owned()
    } else {
        format!("cli@{host}")
    }
}
