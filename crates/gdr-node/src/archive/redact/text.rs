//! Finding names and addresses in text.

use std::net::{Ipv4Addr, Ipv6Addr};

use regex::{Captures, Regex};

use super::pseudonym::{Guid, Kind, Mac, Pseudonyms};

/// Addresses and numbers recognized by their form, longest first.
const LOOKS: &str = r"(?xi)
      (?<ib> (?: [0-9a-f]{2} : ){19} [0-9a-f]{2} )
    | (?<gid> (?: [0-9a-f]{4} : ){7} [0-9a-f]{4} )
    | (?<v6> (?: [0-9a-f]{1,4} : ){7} [0-9a-f]{1,4} | [0-9a-f:]* :: [0-9a-f:.]* )
    | (?<guid> (?: [0-9a-f]{4} : ){3} [0-9a-f]{4} )
    | (?<eui> [0-9a-f]{2} (?: : [0-9a-f]{2} ){7} | [0-9a-f]{2} (?: - [0-9a-f]{2} ){7} )
    | (?<mac> [0-9a-f]{2} (?: : [0-9a-f]{2} ){5} | [0-9a-f]{2} (?: - [0-9a-f]{2} ){5} )
    | (?<uuid> [0-9a-f]{8} (?: - [0-9a-f]{4} ){3} - [0-9a-f]{12} )
    | (?<v4> [0-9]{1,3} (?: \. [0-9]{1,3} ){3} )";

/// Names recognized by the text in front of them.
const CONTEXTS: &str = r#"(?x)
      (?<home> /home/ | /Users/ ) (?<owner> [A-Za-z0-9_.-]+ )
    | (?<said> (?i: serial (?: \x20? (?: number | no ) )? ) [.]? \s? [:=] \s* "? )
      (?<serial> [^\s",;]+ )
    | \( (?<builder> [\w.+-]+ @ [\w.+-]+ ) \)"#;

/// The subject of a limit: `alice soft memlock unlimited`.
const LIMITS: &str =
    r"(?m)^(?<lead>\s*[@%]?)(?<who>[A-Za-z_][A-Za-z0-9_.-]*)(?<rest>\s+(?:soft|hard|-)\s)";

/// Words of the kernel log, which would be replaced everywhere if they were taken for names of hosts or users.
const WORDS: [&str; 14] = [
    "(none)",
    "gpu",
    "host",
    "infiniband",
    "kernel",
    "linux",
    "localhost",
    "mlx5_core",
    "node",
    "nvidia",
    "pci",
    "rdma",
    "root",
    "systemd",
];

/// The kind of a text, which determines what to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// A path, a name in a directory, or a link target: addresses of devices only.
    Name,
    /// A kernel value: addresses only, except IPv4 addresses, which look like versions.
    Value,
    /// Written by people or programs: may contain anything.
    Free,
    /// Like `Free`, with lines that name users to whom limits apply.
    Limits,
}

/// The compiled expressions.
pub(super) struct Text {
    looks: Regex,
    contexts: Regex,
    limits: Regex,
    /// Names of hosts and users, once known.
    words: Option<Regex>,
    hosts: Vec<String>,
    pub(super) pseudonyms: Pseudonyms,
}

impl Text {
    pub(super) fn new() -> Result<Self, regex::Error> {
        Ok(Self {
            looks: Regex::new(LOOKS)?,
            contexts: Regex::new(CONTEXTS)?,
            limits: Regex::new(LIMITS)?,
            words: None,
            hosts: Vec::new(),
            pseudonyms: Pseudonyms::default(),
        })
    }

    /// Also searches for these names from now on, except those that are common words.
    pub(super) fn know(&mut self, hosts: &[String], users: &[String]) -> Result<(), regex::Error> {
        let is_name = |name: &&String| {
            !name.is_empty() && !WORDS.contains(&name.to_ascii_lowercase().as_str())
        };
        let hosts: Vec<String> = hosts.iter().filter(is_name).cloned().collect();
        let users: Vec<String> = users.iter().filter(is_name).cloned().collect();
        self.hosts.clone_from(&hosts);
        for user in &users {
            self.pseudonyms.number(Kind::User, user);
        }
        let mut words: Vec<String> = hosts
            .iter()
            // With any domain after it.
            .map(|host| format!(r"{}(?:\.[A-Za-z0-9-]+)*", regex::escape(host)))
            .chain(users.iter().map(|user| regex::escape(user)))
            .collect();
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        self.words = match words.as_slice() {
            [] => None,
            words => Some(Regex::new(&format!("(?i)(?:{})", words.join("|")))?),
        };
        Ok(())
    }

    /// Replaces names by pseudonyms.
    pub(super) fn redact(&mut self, text: &str, nature: Nature) -> String {
        let pseudonyms = &mut self.pseudonyms;
        let text = &runs(text, pseudonyms);
        let text = if may_hold_addresses(text) {
            replace(&self.looks, text, |found| {
                address(found, text, nature, pseudonyms)
            })
        } else {
            text.clone()
        };
        if matches!(nature, Nature::Name | Nature::Value) {
            return text;
        }
        let text = replace(&self.contexts, &text, |found| {
            Some(context(found, pseudonyms))
        });
        let text = match nature {
            Nature::Limits => replace(&self.limits, &text, |found| {
                let who = found.name("who").filter(|who| who.as_str() != "root")?;
                let number = pseudonyms.number(Kind::User, who.as_str());
                Some(format!("{}user-{number}{}", &found["lead"], &found["rest"]))
            }),
            _ => text,
        };
        let Some(words) = &self.words else {
            return text;
        };
        replace(words, &text, |found| {
            let word = found.get_match();
            if !is_word(&text, word.start(), word.end()) {
                return None;
            }
            let word = word.as_str();
            let short = word.split('.').next().unwrap_or_default();
            let is_host = self
                .hosts
                .iter()
                .any(|host| host.eq_ignore_ascii_case(word) || host.eq_ignore_ascii_case(short));
            // All names of the node share one pseudonym.
            Some(if is_host {
                "host-1".to_owned()
            } else {
                format!("user-{}", pseudonyms.number(Kind::User, word))
            })
        })
    }
}

/// Returns whether a text may contain addresses with separators between their digits.
fn may_hold_addresses(text: &str) -> bool {
    let count = |byte: u8| text.bytes().filter(|b| *b == byte).take(4).count();
    count(b':') > 1 || count(b'-') > 3 || count(b'.') > 2
}

/// Replaces addresses and numbers without separators: an address at the end of an interface name, a GUID as a number, a
/// container ID.
fn runs(text: &str, all: &mut Pseudonyms) -> String {
    const SHORTEST: usize = 12;
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(joins) {
        let (between, from) = rest.split_at(start);
        let end = from.find(|c| !joins(c)).unwrap_or(from.len());
        let (run, after) = from.split_at(end);
        made.push_str(between);
        match (run.len() >= SHORTEST).then(|| of_run(run, all)).flatten() {
            Some(pseudonym) => made.push_str(&pseudonym),
            None => made.push_str(run),
        }
        rest = after;
    }
    made.push_str(rest);
    made
}

/// Returns the pseudonym of a run of letters and digits; `None` if it is not an address.
fn of_run(run: &str, all: &mut Pseudonyms) -> Option<String> {
    let lead = ["0x", "enx", "wlx", "ibx"]
        .into_iter()
        .find(|lead| run.starts_with(lead))
        .unwrap_or_default();
    let digits = &run[lead.len()..];
    if !matches!(digits.len(), 12 | 16 | 64) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = hex(digits);
    if bytes.len() == 32 {
        let number = all.number(Kind::Container, digits);
        return Some(format!("{number:064x}"));
    }
    // Most numbers of this length are not addresses. Without a prefix that marks an address, only addresses of known
    // devices are replaced.
    let is_known = all.knows(*bytes.first_chunk::<3>()?, *bytes.last_chunk::<3>()?);
    if !is_known && (lead.is_empty() || lead == "0x") {
        return None;
    }
    let made = match bytes.len() {
        6 => plain(&all.mac(bytes.try_into().ok()?)),
        _ => plain(&all.guid(bytes.try_into().ok()?)),
    };
    Some(format!("{lead}{made}"))
}

/// Replaces each match by the result of `make`. If that is `None`, the search continues after the match's first
/// character.
fn replace(
    what: &Regex,
    text: &str,
    mut make: impl FnMut(&Captures<'_>) -> Option<String>,
) -> String {
    let mut made = String::with_capacity(text.len());
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = what.captures_at(text, at) {
        let whole = found.get_match();
        if let Some(pseudonym) = make(&found).filter(|_| !whole.is_empty()) {
            made.push_str(&text[copied..whole.start()]);
            made.push_str(&pseudonym);
            copied = whole.end();
            at = whole.end();
        } else {
            let first = text[whole.start()..].chars().next();
            at = whole.start() + first.map_or(1, char::len_utf8);
            if at > text.len() {
                break;
            }
        }
    }
    made.push_str(&text[copied..]);
    made
}

fn joins(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns whether a match is a whole word, with no letter or digit next to it.
fn is_word(text: &str, start: usize, end: usize) -> bool {
    !text[..start].ends_with(joins) && !text[end..].starts_with(joins)
}

/// Returns whether further groups of `group` hexadecimal digits precede or follow a match, after a separator.
fn goes_on(text: &str, start: usize, end: usize, separator: char, group: usize) -> bool {
    let is_group = |word: &str| word.len() == group && word.bytes().all(|b| b.is_ascii_hexdigit());
    let before = text[..start].strip_suffix(separator).is_some_and(|text| {
        let word = text.rsplit(|c| !joins(c)).next().unwrap_or_default();
        is_group(word)
    });
    let after = text[end..].strip_prefix(separator).is_some_and(|text| {
        let word = text.split(|c| !joins(c)).next().unwrap_or_default();
        is_group(word)
    });
    before || after
}

/// Returns a match's pseudonym according to its form; `None` if it is not an address.
fn address(
    found: &Captures<'_>,
    text: &str,
    nature: Nature,
    all: &mut Pseudonyms,
) -> Option<String> {
    let whole = found.get_match();
    let (start, end) = (whole.start(), whole.end());
    // `0x` does not belong to a number.
    let begins = !text[..start].ends_with(joins) || text[..start].ends_with("0x");
    if !begins || text[end..].starts_with(joins) {
        return None;
    }
    let alone = |separator, group| !goes_on(text, start, end, separator, group);
    if let Some(ib) = found.name("ib") {
        // Queue pair number, flags, then a GID.
        let bytes = hex(ib.as_str());
        let gid: [u8; 16] = bytes.get(4..20)?.try_into().ok()?;
        let made = all.ipv6(Ipv6Addr::from(gid)).octets();
        return Some(joined(&[&bytes[..4], &made[..]].concat(), 1, ':'));
    }
    if let Some(gid) = found.name("gid").filter(|_| alone(':', 4)) {
        let bytes: [u8; 16] = hex(gid.as_str()).try_into().ok()?;
        return Some(joined(&all.ipv6(Ipv6Addr::from(bytes)).octets(), 2, ':'));
    }
    if let Some(address) = found.name("v6").filter(|_| nature != Nature::Name) {
        let address: Ipv6Addr = address.as_str().parse().ok()?;
        return Some(all.ipv6(address).to_string());
    }
    if let Some(guid) = found.name("guid").filter(|_| alone(':', 4)) {
        let bytes: Guid = hex(guid.as_str()).try_into().ok()?;
        return Some(joined(&all.guid(bytes), 2, ':'));
    }
    let separator = if whole.as_str().contains(':') {
        ':'
    } else {
        '-'
    };
    if let Some(guid) = found.name("eui").filter(|_| alone(separator, 2)) {
        let bytes: Guid = hex(guid.as_str()).try_into().ok()?;
        return Some(joined(&all.guid(bytes), 1, separator));
    }
    if let Some(mac) = found.name("mac").filter(|_| alone(separator, 2)) {
        let bytes: Mac = hex(mac.as_str()).try_into().ok()?;
        return Some(joined(&all.mac(bytes), 1, separator));
    }
    if let Some(uuid) = found.name("uuid").filter(|_| nature != Nature::Name) {
        let number = all.number(Kind::Uuid, uuid.as_str());
        return Some(format!("00000000-0000-0000-0000-{number:012x}"));
    }
    let address = found
        .name("v4")
        .filter(|_| matches!(nature, Nature::Free | Nature::Limits))?;
    // A version may have more parts: `1.2.3.4-5`, `1.2.3.4.5`.
    let more = |c: char| matches!(c, '.' | '-');
    let next = text[end..].strip_prefix(more).unwrap_or_default();
    if text[..start].ends_with(more) || next.starts_with(joins) {
        return None;
    }
    let address: Ipv4Addr = address.as_str().parse().ok()?;
    Some(all.ipv4(address).to_string())
}

fn context(found: &Captures<'_>, all: &mut Pseudonyms) -> String {
    if let Some(owner) = found.name("owner") {
        let number = all.number(Kind::User, owner.as_str());
        return format!("{}user-{number}", &found["home"]);
    }
    if let Some(serial) = found.name("serial") {
        let number = all.number(Kind::Serial, serial.as_str());
        return format!("{}serial-{number}", &found["said"]);
    }
    "(user@host)".to_owned()
}

/// Parses hexadecimal digits, ignoring anything between them.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn plain(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats bytes in groups of this many, with a separator in between.
fn joined(bytes: &[u8], group: usize, separator: char) -> String {
    let groups: Vec<String> = bytes.chunks(group).map(plain).collect();
    groups.join(&separator.to_string())
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    fn redacted(text: &str, nature: Nature) -> String {
        let mut of = Text::new().unwrap();
        of.know(&["node17".to_owned()], &["alice".to_owned()])
            .unwrap();
        of.redact(text, nature)
    }

    #[test]
    fn what_only_looks_like_an_address_stays() {
        for text in [
            "0000:18:00.0 0000:19:00.1",
            "0x0000200000000000 0x0000201fffffffff 0x000000000014220c",
            "[   12.345678] std::vector at 12:34:56",
            "24.10-1.1.4.0.105",
            "Kernel Module for x86_64  580.95.05  Release",
            "firmware version: 28.41.1000",
            "0.0.0.0 127.0.0.1 255.255.255.0 :: ::1",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "00:00:00:00:00:00",
            "pci 0000:15:01.0: [8086:352a] type 01 class 0x060400",
        ] {
            assert_eq!(redacted(text, Nature::Free), text);
        }
        assert_eq!(redacted("1.2.3.4", Nature::Value), "1.2.3.4");
    }

    #[test]
    fn every_spelling_of_an_address_is_found() {
        let text = "9c:63:c0:5e:41:17 9c-63-c0-5e-41-17 enx9c63c05e4117 9c63:c003:005e:4117 \
                    0x9c63c003005e4117 9c63c05e4117 fe80:0000:0000:0000:9e63:c0ff:fe5e:4117 \
                    fe80::9e63:c0ff:fe5e:4117 mac=9C:63:C0:5E:41:17, mac:9c:63:c0:5e:41:17";
        let made = redacted(text, Nature::Value).to_lowercase();
        for original in ["5e:41:17", "5e-41-17", "5e4117", "5e:4117"] {
            assert!(!made.contains(original), "{original} in {made}");
        }
        assert!(
            made.contains("9c:63:c0:00:00:01") && made.contains("enx9c63c0000001"),
            "{made}"
        );
        assert_contains!(made, "fe80:0000:0000:0000:9e63:c0ff:fe00:0001");
    }

    #[test]
    fn names_are_found_by_the_text_before_them() {
        let made = redacted(
            "node17 NODE17.cluster.example /home/alice/x /home/bob alice: SerialNumber: X1234, \
             (root@builder.example) at 10.1.2.3:80 but node170 and malice stay; 10.1.2.4.",
            Nature::Free,
        );
        assert_eq!(
            made,
            "host-1 host-1 /home/user-1/x /home/user-2 user-1: SerialNumber: serial-1, \
             (user@host) at 198.18.0.1:80 but node170 and malice stay; 198.18.0.2."
        );
    }

    #[test]
    fn limits_name_only_root_and_all_users() {
        let made = redacted(
            "# limits\n* - memlock unlimited\nroot - memlock 1\ncarol soft memlock 1\n@hpc - x 1\n",
            Nature::Limits,
        );
        assert_eq!(
            made,
            "# limits\n* - memlock unlimited\nroot - memlock 1\nuser-2 soft memlock 1\n@user-3 - x 1\n"
        );
    }
}
