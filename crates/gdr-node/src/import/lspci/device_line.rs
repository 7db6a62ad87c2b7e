//! The line with which lspci starts a function.

use crate::pci::{Class, DeviceId, Identity, VendorId, naming};

fn hex(text: &str) -> Option<u16> {
    u16::from_str_radix(text, 16)
        .ok()
        .filter(|_| text.len() == 4)
}

/// Parses `3D controller [0302]: NVIDIA Corporation ... [10de:2330] (rev a1)`, `0302: 10de:2330`, or the form of `-mm`,
/// `"3D controller" "NVIDIA Corporation" "GH100" -ra1`.
pub(super) fn identity(headline: &str) -> Identity {
    if headline.starts_with('"') {
        // The odd-numbered pieces are inside quotation marks.
        let mut quoted = headline.split('"').skip(1).step_by(2);
        let mut next = || quoted.next().unwrap_or_default();
        return of_parts(next(), next(), next());
    }
    let (class, name) = headline.split_once(": ").unwrap_or((headline, ""));
    let name = name
        .split(" (rev ")
        .next()
        .unwrap_or(name)
        .split(" (prog-if ")
        .next()
        .unwrap_or(name)
        .trim();
    let (vendor, device) = naming::ids(name);
    // The numbers are not part of the name; a device without a name is `Device [10de:2330]`.
    let plain = match name.rsplit_once(" [") {
        Some((plain, numbers)) if numbers.contains(':') && !plain.ends_with("Device") => plain,
        _ => name,
    };
    Identity {
        class: class_of(class),
        vendor,
        device,
        name: (!plain.is_empty()).then(|| plain.to_owned()),
        ..Identity::default()
    }
}

/// Parses class, vendor and device as printed by lspci's machine-readable forms: names, numbers, or names with
/// bracketed numbers.
pub(super) fn of_parts(class: &str, vendor: &str, device: &str) -> Identity {
    let number = |text: &str| hex(text).or_else(|| numbered(text).1);
    let name = format!("{vendor} {device}");
    Identity {
        class: class_of(class),
        vendor: number(vendor)
            .map(VendorId)
            .or_else(|| VendorId::from_name(vendor)),
        device: number(device)
            .or_else(|| hex(device.strip_prefix("Device ")?))
            .map(DeviceId),
        name: (!name.trim().is_empty()).then(|| name.trim().to_owned()),
        ..Identity::default()
    }
}

/// Splits a name and the bracketed number after it: `3D controller [0302]`.
fn numbered(text: &str) -> (&str, Option<u16>) {
    match text.rsplit_once(" [") {
        Some((name, number)) => (name, hex(number.trim_end_matches(']'))),
        None => (text, None),
    }
}

/// Parses a class given by number or name: `0302`, `3D controller [0302]`, `Class 0302`.
pub(super) fn class_of(text: &str) -> Option<Class> {
    let (name, number) = numbered(text);
    number
        .or_else(|| hex(text))
        .or_else(|| hex(text.strip_prefix("Class ")?))
        .map(|number| Class(u32::from(number) << 8))
        .or_else(|| Class::from_name(name))
}

/// Returns whether the text after an address starts with a class, by number or name.
pub(super) fn has_class(rest: &str) -> bool {
    let quoted = || rest.strip_prefix('"')?.split_once('"');
    match quoted().or_else(|| rest.split_once(": ")) {
        Some((class, _)) => class_of(class).is_some(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_one_line_have_one_identity() {
        for line in [
            "3D controller [0302]: NVIDIA Corporation GH100 [H100] [10de:2330] (rev a1)",
            "0302: 10de:2330 (rev a1)",
            "Class 0302: Device 10de:2330",
            "3D controller: NVIDIA Corporation Device 2330 (rev a1)",
            "\"3D controller [0302]\" \"NVIDIA Corporation [10de]\" \"GH100 [H100] [2330]\" -ra1",
            "\"0302\" \"10de\" \"2330\" -ra1 -p00 \"10de\" \"16c1\"",
            "\"3D controller\" \"NVIDIA Corporation\" \"Device 2330\" -ra1 \"\" \"\"",
        ] {
            let identity = identity(line);
            assert!(identity.is_nvidia_gpu(), "{line}");
            assert_eq!(identity.device, Some(DeviceId(0x2330)), "{line}");
            assert!(has_class(line), "{line}");
        }
        assert!(!has_class("words: of a log"));
    }

    #[test]
    fn numbers_are_no_part_of_a_name() {
        let of = |line| identity(line).name.unwrap();
        let named =
            of("3D controller [0302]: NVIDIA Corporation GH100 [H100] [10de:2330] (rev a1)");
        assert_eq!(named, "NVIDIA Corporation GH100 [H100]");
        let unnamed = of("3D controller [0302]: NVIDIA Corporation Device [10de:2330]");
        assert_eq!(unnamed, "NVIDIA Corporation Device [10de:2330]");
    }
}
