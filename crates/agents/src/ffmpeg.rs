//! What everybody who runs ffmpeg needs: where it is, and what it must not repeat.

use std::path::PathBuf;

/// Where ffmpeg is, if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("ffmpeg"))
        .find(|file| file.is_file())
}

/// The user and password in a URL.
pub(crate) fn login_of(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (login, _) = authority.rsplit_once('@')?;
    (!login.is_empty()).then(|| login.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_login_of_a_source_is_found_and_nothing_else() {
        assert_eq!(login_of("http://ann:pw@host/x").as_deref(), Some("ann:pw"));
        assert_eq!(login_of("http://host/x@y"), None);
        assert_eq!(login_of("udp://@239.0.0.1:1234"), None);
    }
}
