//! `NV_ESC_EXPORT_TO_DMABUF_FD`, as libcuda issues it.

use std::ffi::{c_ulong, c_void};

use super::super::abi::{EXPORT_TO_DMABUF, Handle, MAGIC, XFER};
use super::super::extents::ObjectRange;
use super::error::HookError;

/// The maximum number of objects in one call (`NV_DMABUF_EXPORT_MAX_HANDLES`).
const MAX_OBJECTS: usize = 128;

/// The two layouts. The second one adds `mappingType` and `bAllowMmap` (570 series), so the sizes differ; a driver
/// accepts only its own layout.
struct Layout {
    size: usize,
    handles: usize,
    offsets: usize,
    sizes: usize,
}

const LAYOUTS: [Layout; 2] = [
    // 515 to 565.
    Layout {
        size: 2600,
        handles: 32,
        offsets: 544,
        sizes: 1568,
    },
    // 570 or later.
    Layout {
        size: 2608,
        handles: 36,
        offsets: 552,
        sizes: 1576,
    },
];

const CLIENT: usize = 4;
const TOTAL: usize = 8;
const COUNT: usize = 12;
const INDEX: usize = 16;

/// The contents of one export, made by one call or by several.
#[derive(Debug, Default)]
pub(in super::super) struct Export {
    sources: Vec<ObjectRange>,
    problem: Option<HookError>,
    total: usize,
}

impl Export {
    /// Reads an `ioctl` that succeeded, if it is an export.
    ///
    /// # Safety
    /// `arg` points to as many bytes as are encoded in `request`.
    pub(super) unsafe fn record(&mut self, request: c_ulong, arg: *const c_void) {
        let (number, size) = (request as u8, request as usize >> 16 & 0x3fff);
        if (request >> 8) as u8 != MAGIC {
            return;
        }
        match number {
            EXPORT_TO_DMABUF => {
                // SAFETY: the caller's promise.
                let bytes = unsafe { std::slice::from_raw_parts(arg.cast::<u8>(), size) };
                self.read(bytes);
            }
            // nv_ioctl_xfer_t: cmd u32@0, size u32@4, ptr u64@8.
            XFER if size == 16 => {
                // SAFETY: the caller's promise, 16 bytes.
                let wrapper = unsafe { std::slice::from_raw_parts(arg.cast::<u8>(), 16) };
                if u32_at(wrapper, 0) == Some(u32::from(EXPORT_TO_DMABUF))
                    && let Some(inner) = u32_at(wrapper, 4)
                    && let Some(at) = u64_at(wrapper, 8)
                {
                    // SAFETY: the kernel accepted the wrapper, so it copied `inner` bytes from there and back
                    // (`nvidia_ioctl`).
                    let bytes =
                        unsafe { std::slice::from_raw_parts(at as *const u8, inner as usize) };
                    self.read(bytes);
                }
            }
            _ => {}
        }
    }

    /// Reads one call's structure.
    fn read(&mut self, bytes: &[u8]) {
        if let Err(problem) = self.try_read(bytes) {
            self.problem = Some(problem);
        }
    }

    fn try_read(&mut self, bytes: &[u8]) -> Result<(), HookError> {
        let unknown = || HookError::Layout(bytes.len());
        let layout = LAYOUTS
            .iter()
            // The driver accepts only its own layout, so the size identifies it.
            .find(|l| l.size == bytes.len())
            .ok_or_else(unknown)?;
        let field = |at| u32_at(bytes, at).ok_or_else(unknown);
        let client = Handle(field(CLIENT)?);
        self.total = field(TOTAL)? as usize;
        let (count, index) = (field(COUNT)? as usize, field(INDEX)? as usize);
        // The calls of an export come in order, so an unexpected index shows that one was missed.
        if count > MAX_OBJECTS || index != self.sources.len() {
            return Err(HookError::Index { count, index });
        }
        for i in 0..count {
            self.sources.push(ObjectRange {
                client,
                object: Handle(field(layout.handles + 4 * i)?),
                offset: u64_at(bytes, layout.offsets + 8 * i).ok_or_else(unknown)?,
                len: u64_at(bytes, layout.sizes + 8 * i).ok_or_else(unknown)?,
            });
        }
        Ok(())
    }

    /// Returns the parts of the range, in order.
    pub(super) fn sources(self) -> Result<Vec<ObjectRange>, HookError> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        if self.sources.is_empty() {
            return Err(HookError::NotSeen);
        }
        // Without the rest, a part of the range would be missing from the mapping.
        if self.sources.len() != self.total {
            return Err(HookError::Incomplete {
                seen: self.sources.len(),
                total: self.total,
            });
        }
        Ok(self.sources)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(layout: &Layout, index: u32, total: u32, objects: &[(u32, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; layout.size];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(CLIENT, &0xc1d0_0001u32.to_le_bytes());
        put(TOTAL, &total.to_le_bytes());
        put(COUNT, &(objects.len() as u32).to_le_bytes());
        put(INDEX, &index.to_le_bytes());
        for (i, (handle, offset, size)) in objects.iter().enumerate() {
            put(layout.handles + 4 * i, &handle.to_le_bytes());
            put(layout.offsets + 8 * i, &offset.to_le_bytes());
            put(layout.sizes + 8 * i, &size.to_le_bytes());
        }
        bytes
    }

    /// Returns the structure of an export of one object.
    pub(in super::super) fn one_object() -> Vec<u8> {
        call(&LAYOUTS[1], 0, 1, &[(0x5c00_0010, 0, 4096)])
    }

    pub(in super::super) fn request(number: u8, size: usize) -> c_ulong {
        (3 << 30 | size << 16 | (MAGIC as usize) << 8 | number as usize) as c_ulong
    }

    #[test]
    fn both_layouts_are_read_directly_and_wrapped() {
        for layout in &LAYOUTS {
            let bytes = call(layout, 0, 1, &[(0x5c00_0010, 0x20_0000, 0x1_0000)]);
            let expected = [ObjectRange {
                client: Handle(0xc1d0_0001),
                object: Handle(0x5c00_0010),
                offset: 0x20_0000,
                len: 0x1_0000,
            }];

            let mut direct = Export::default();
            // SAFETY: `bytes` is as long as the request says.
            unsafe {
                direct.record(
                    request(EXPORT_TO_DMABUF, bytes.len()),
                    bytes.as_ptr().cast(),
                )
            };
            assert_eq!(direct.sources().unwrap(), expected);

            let mut wrapper = [0u8; 16];
            wrapper[..4].copy_from_slice(&u32::from(EXPORT_TO_DMABUF).to_le_bytes());
            wrapper[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
            wrapper[8..].copy_from_slice(&(bytes.as_ptr() as u64).to_le_bytes());
            let mut wrapped = Export::default();
            // SAFETY: the wrapper points to `bytes`.
            unsafe { wrapped.record(request(XFER, 16), wrapper.as_ptr().cast()) };
            assert_eq!(wrapped.sources().unwrap(), expected);
        }
    }

    #[test]
    fn an_export_in_several_calls_is_one_list() {
        let mut export = Export::default();
        export.read(&call(&LAYOUTS[1], 0, 3, &[(1, 0, 4096), (2, 0, 4096)]));
        export.read(&call(&LAYOUTS[1], 2, 3, &[(3, 8192, 4096)]));
        let handles: Vec<_> = export
            .sources()
            .unwrap()
            .iter()
            .map(|s| s.object.0)
            .collect();
        assert_eq!(handles, [1, 2, 3]);
    }

    #[test]
    fn an_incomplete_export_and_an_unknown_layout_are_errors() {
        let mut half = Export::default();
        half.read(&call(&LAYOUTS[1], 0, 2, &[(1, 0, 4096)]));
        let error = half.sources().unwrap_err();
        assert!(
            matches!(error, HookError::Incomplete { seen: 1, total: 2 }),
            "{error}"
        );

        let mut unknown = Export::default();
        unknown.read(&[0; 2616]);
        let error = unknown.sources().unwrap_err();
        assert!(matches!(error, HookError::Layout(2616)), "{error}");

        let error = Export::default().sources().unwrap_err();
        assert!(matches!(error, HookError::NotSeen), "{error}");
    }

    #[test]
    fn other_calls_are_ignored() {
        let mut export = Export::default();
        let bytes = [0u8; 32];
        // SAFETY: `bytes` has the 32 bytes that each request encodes.
        unsafe {
            export.record(request(0x2a, 32), bytes.as_ptr().cast());
            export.record(
                (3 << 30 | 32 << 16 | 0xda << 8 | 217) as c_ulong,
                bytes.as_ptr().cast(),
            );
        }
        assert!(export.problem.is_none() && export.sources.is_empty());
    }

    proptest! {
        #[test]
        fn no_structure_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 2600..2610)) {
            let mut export = Export::default();
            export.read(&bytes);
            let _ = export.sources();
        }
    }
}
