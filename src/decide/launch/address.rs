//! Addresses `HOST:PORT`.

/// A host by name or number, and a port on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Reads `HOST:PORT`; an IPv6 address stands in brackets.
    ///
    /// # Errors
    /// Says what the text must be.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = text
            .rsplit_once(':')
            .ok_or("must be HOST:PORT, such as head:29500")?;
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        if bracketed.is_none() && host.contains(':') {
            return Err("an IPv6 address stands in brackets: [::1]:29500".to_owned());
        }
        let host = bracketed.unwrap_or(host);
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(format!(
                "`{host}` is no host: give HOST:PORT, such as head:29500"
            ));
        }
        match port.parse() {
            Ok(port) if port > 0 => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            _ => Err(format!("`{port}` is no port: give one from 1 to 65535")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        let parsed = |text| Address::parse(text).map(|own| (own.host, own.port));
        assert_eq!(parsed("head:29500"), Ok(("head".to_owned(), 29_500)));
        assert_eq!(parsed("[::1]:1"), Ok(("::1".to_owned(), 1)));
        for (wrong, why) in [
            ("head", "must be HOST:PORT"),
            ("head:", "`` is no port"),
            ("head:0", "`0` is no port"),
            ("head:65536", "`65536` is no port"),
            (":1", "`` is no host"),
            ("::1:1", "in brackets"),
        ] {
            let error = parsed(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
