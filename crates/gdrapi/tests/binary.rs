//! The shared library as the loader sees it.

mod library;

use std::collections::BTreeSet;

use library::shared_library;
use object::elf::{DF_1_NODELETE, DT_FLAGS_1, DT_NEEDED, DT_SONAME, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, SectionHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _};

/// The functions of GDRCopy 2.6.
const FUNCTIONS: [&str; 17] = [
    "gdr_close",
    "gdr_copy_from_mapping",
    "gdr_copy_to_mapping",
    "gdr_driver_get_version",
    "gdr_get_attribute",
    "gdr_get_callback_flag",
    "gdr_get_info",
    "gdr_get_info_v2",
    "gdr_get_mapping_type_string",
    "gdr_map",
    "gdr_map_v2",
    "gdr_open",
    "gdr_pin_buffer",
    "gdr_pin_buffer_v2",
    "gdr_runtime_get_version",
    "gdr_unmap",
    "gdr_unpin_buffer",
];

#[test]
fn exactly_the_functions_of_gdrcopy_are_exported_and_without_versions() {
    let bytes = std::fs::read(shared_library()).expect("the library can be read");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let exported: BTreeSet<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    assert_eq!(exported, BTreeSet::from(FUNCTIONS));
}

#[test]
fn the_name_is_libgdrapi_so_2_and_nothing_but_libc_is_needed() {
    let bytes = std::fs::read(shared_library()).expect("the library can be read");
    let header = FileHeader64::<Endianness>::parse(&*bytes).expect("an ELF file");
    let endian = header.endian().expect("an endianness");
    let sections = header.sections(endian, &*bytes).expect("sections");
    let (entries, link) = sections
        .dynamic(endian, &*bytes)
        .expect("a readable dynamic section")
        .expect("a dynamic section");
    let strings = sections
        .strings(endian, &*bytes, link)
        .expect("its strings");
    assert!(
        sections
            .section(link)
            .is_ok_and(|section| section.sh_size(endian) > 0)
    );

    let (mut needed, mut soname, mut flags) = (BTreeSet::new(), None, 0);
    for entry in entries {
        let text = || {
            let text = strings.get(entry.d_val(endian) as u32).expect("a string");
            String::from_utf8(text.to_vec()).expect("text")
        };
        match entry.tag32(endian) {
            Some(DT_NEEDED) => _ = needed.insert(text()),
            Some(DT_SONAME) => soname = Some(text()),
            Some(DT_FLAGS_1) => flags = entry.d_val(endian),
            _ => {}
        }
    }
    assert_eq!(soname.as_deref(), Some("libgdrapi.so.2"));
    assert_ne!(
        flags & u64::from(DF_1_NODELETE),
        0,
        "dlclose must not unload it"
    );
    // The dynamic loader is part of libc.
    needed.retain(|name| !name.starts_with("libc.so") && !name.starts_with("ld-linux"));
    assert_eq!(needed, BTreeSet::new());
}
