//! Arbitrary configuration files.

use netvm_config::parse;

/// Parses a configuration; what is accepted must be the same after it was written.
pub fn config_parse(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match parse("fuzz.toml", &text) {
        Err(error) => {
            assert!(!error.render(false).is_empty() && !error.render(true).is_empty());
        }
        Ok(loaded) => {
            for warning in &loaded.warnings {
                assert!(!warning.render(false).is_empty());
            }
            let written = loaded.host.to_toml();
            let again = parse("written.toml", &written);
            let again = again.unwrap_or_else(|error| unreachable!("{}\n{written}", error.render(false)));
            assert_eq!(again.host, loaded.host);
            assert_eq!(again.host.to_toml(), written);
            assert!(netvm_config::plan(&loaded.host, &again.host).changes.is_empty());
        }
    }
}
