//! The line with which lspci begins a function.

use crate::pci::{Class, DeviceId, Identity, VendorId};

/// `3D controller [0302]: NVIDIA Corporation ... [10de:2330] (rev a1)`, or `0302: 10de:2330`.
pub(super) fn identity(headline: &str) -> Identity {
    let hex = |text: &str| {
        u16::from_str_radix(text, 16)
            .ok()
            .filter(|_| text.len() == 4)
    };
    let (class, name) = headline.split_once(": ").unwrap_or((headline, ""));
    let name = name
        .split(" (rev ")
        .next()
        .unwrap_or(name)
        .split(" (prog-if ")
        .next()
        .unwrap_or(name);
    let (class_name, class_number) = match class.rsplit_once(" [") {
        Some((name, number)) => (name, hex(number.trim_end_matches(']'))),
        None => (class, hex(class)),
    };
    let numeric = || {
        let (vendor, device) = name.trim().split_once(':')?;
        Some((VendorId(hex(vendor)?), DeviceId(hex(device)?)))
    };
    let ids = ids_in_brackets(name).or_else(numeric);
    Identity {
        class: class_number
            .map(|number| Class(u32::from(number) << 8))
            .or_else(|| Class::from_name(class_name)),
        vendor: ids
            .map(|(vendor, _)| vendor)
            .or_else(|| VendorId::from_name(name)),
        device: ids.map(|(_, device)| device),
        name: (!name.is_empty()).then(|| name.trim().to_owned()),
        ..Identity::default()
    }
}

/// Whether what follows an address begins with a class, by its name or its number.
pub(super) fn has_class(rest: &str) -> bool {
    let Some((class, _)) = rest.split_once(": ") else {
        return false;
    };
    let (name, number) = class.rsplit_once(" [").unwrap_or((class, ""));
    let is_number = |text: &str| text.len() == 4 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_number(number.trim_end_matches(']')) || is_number(name) || Class::from_name(name).is_some()
}

/// The last `[10de:2330]` in a name.
pub(super) fn ids_in_brackets(name: &str) -> Option<(VendorId, DeviceId)> {
    let hex = |text: &str| {
        u16::from_str_radix(text, 16)
            .ok()
            .filter(|_| text.len() == 4)
    };
    let (vendor, device) = name
        .rsplit_once('[')?
        .1
        .split_once(']')?
        .0
        .split_once(':')?;
    Some((VendorId(hex(vendor)?), DeviceId(hex(device)?)))
}
