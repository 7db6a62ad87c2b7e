//! Queries of the properties of an address.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::api::Opaque;
use super::context::{Context, CurrentContext};
use super::layout::{FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER, memory_type, pointer_attribute};
use super::{Cuda, check};
use crate::device::Ordinal;
use crate::error::{CuResult, Error, Result};
use crate::pointer::{AddressRange, BufferId, DevicePtr, Family, PointerInfo, PointerKind};

/// The results of one `cuPointerGetAttributes`. Attributes that do not apply to an address are 0.
#[derive(Debug, Default)]
struct Attributes {
    memory_type: c_uint,
    /// At least as wide as the driver's boolean in every release.
    is_managed: c_uint,
    device: c_int,
    buffer: u64,
    start: u64,
    size: usize,
    placement: Option<Placement>,
}

/// The attributes of CUDA 11 and later.
#[derive(Debug, Default)]
struct Placement {
    is_ipc_capable: c_uint,
    pool: usize,
    mapping_start: u64,
    mapping_size: usize,
}

impl Cuda {
    pub(super) fn query(&self, ptr: DevicePtr) -> Result<PointerInfo> {
        // The call fails if the driver does not know one of the attributes.
        let mut answers = Attributes {
            placement: Some(Placement::default()),
            ..Attributes::default()
        };
        let mut status = self.attributes_of(ptr, &mut answers);
        if status == CuResult::INVALID_VALUE.0 {
            answers = Attributes::default();
            status = self.attributes_of(ptr, &mut answers);
        }
        // The error for addresses outside unified addressing differs between releases.
        let unknown = [CuResult::INVALID_VALUE, CuResult::INVALID_CONTEXT];
        if unknown.contains(&CuResult(status)) {
            return Err(Error::UnknownPointer { ptr });
        }
        check("cuPointerGetAttributes", status)?;
        answers.describe(ptr)
    }

    fn attributes_of(&self, ptr: DevicePtr, answers: &mut Attributes) -> u32 {
        let mut attributes = vec![
            pointer_attribute::MEMORY_TYPE,
            pointer_attribute::IS_MANAGED,
            pointer_attribute::DEVICE_ORDINAL,
            pointer_attribute::BUFFER_ID,
            pointer_attribute::RANGE_START_ADDR,
            pointer_attribute::RANGE_SIZE,
        ];
        let mut places: Vec<*mut c_void> = vec![
            (&raw mut answers.memory_type).cast(),
            (&raw mut answers.is_managed).cast(),
            (&raw mut answers.device).cast(),
            (&raw mut answers.buffer).cast(),
            (&raw mut answers.start).cast(),
            (&raw mut answers.size).cast(),
        ];
        if let Some(placement) = &mut answers.placement {
            attributes.extend([
                pointer_attribute::IS_IPC_CAPABLE,
                pointer_attribute::MEMPOOL_HANDLE,
                pointer_attribute::MAPPING_BASE_ADDR,
                pointer_attribute::MAPPING_SIZE,
            ]);
            places.extend([
                (&raw mut placement.is_ipc_capable).cast::<c_void>(),
                (&raw mut placement.pool).cast(),
                (&raw mut placement.mapping_start).cast(),
                (&raw mut placement.mapping_size).cast(),
            ]);
        }
        // SAFETY: as many places as attributes, each of the attribute's type; this call needs no current context and
        // takes any address.
        unsafe {
            (self.api.pointer_get_attributes)(
                attributes.len() as c_uint,
                attributes.as_mut_ptr(),
                places.as_mut_ptr(),
                ptr.get(),
            )
        }
    }

    /// Runs `call` in the context in which `ptr` was allocated. If it has none (VMM and pool memory), uses the thread's
    /// current context of `device`, or otherwise the primary one. Allocations and copies in `call` use that context,
    /// too.
    ///
    /// # Errors
    /// The driver's errors, and the errors of `call`.
    pub fn with_pointer_context<T>(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _current = match self.pointer_context(ptr)? {
            Some(context) => CurrentContext::push(&self.api, context)?,
            None => self.enter_any(device)?,
        };
        call()
    }

    /// Sets `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` on the allocation of `ptr`.
    pub(super) fn set_sync_memops(&self, device: Ordinal, ptr: DevicePtr) -> Result<()> {
        let set = self.api.pointer_set_attribute.ok_or(Error::Symbol {
            symbol: "cuPointerSetAttribute",
        })?;
        self.with_pointer_context(device, ptr, || {
            let yes: c_uint = 1;
            let value: *const c_void = (&raw const yes).cast();
            // SAFETY: the value has the attribute's type.
            let status = unsafe { set(value, pointer_attribute::SYNC_MEMOPS, ptr.get()) };
            check("cuPointerSetAttribute", status)
        })
    }

    /// Flushes other devices' writes to the GPU of `ptr`.
    pub(super) fn flush_writes(&self, device: Ordinal, ptr: DevicePtr) -> Result<()> {
        let flush = self.api.flush_gpu_direct_rdma_writes.ok_or(Error::Symbol {
            symbol: "cuFlushGPUDirectRDMAWrites",
        })?;
        self.with_pointer_context(device, ptr, || {
            // SAFETY: both are values of their enumerations, and a context is current.
            let status = unsafe { flush(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) };
            check("cuFlushGPUDirectRDMAWrites", status)
        })
    }

    fn pointer_context(&self, ptr: DevicePtr) -> Result<Option<Context>> {
        let mut context: Opaque = ptr::null_mut();
        let mut attribute = pointer_attribute::CONTEXT;
        let mut place: *mut c_void = (&raw mut context).cast();
        // SAFETY: one attribute and one place of its type.
        let status =
            unsafe { (self.api.pointer_get_attributes)(1, &mut attribute, &mut place, ptr.get()) };
        check("cuPointerGetAttributes", status)?;
        Ok((!context.is_null()).then_some(Context(context)))
    }
}

impl Attributes {
    fn describe(&self, ptr: DevicePtr) -> Result<PointerInfo> {
        let kind = match self.memory_type {
            memory_type::NONE => return Err(Error::UnknownPointer { ptr }),
            _ if self.is_managed != 0 => PointerKind::Managed,
            memory_type::HOST => PointerKind::Host,
            memory_type::DEVICE => PointerKind::Device,
            other => PointerKind::Other(other),
        };
        let device = match u32::try_from(self.device) {
            Ok(device) => Ordinal(device),
            // Host memory that does not belong to one GPU; every GPU can access it.
            Err(_) if kind != PointerKind::Device => Ordinal(0),
            Err(_) => return Err(Error::UnknownPointer { ptr }),
        };
        let mapping = self
            .placement
            .as_ref()
            .filter(|p| p.mapping_size > 0)
            .map(|placement| AddressRange {
                base: DevicePtr::new(placement.mapping_start),
                size: placement.mapping_size as u64,
            });
        let family = match &self.placement {
            _ if kind != PointerKind::Device => Family::Unknown,
            Some(placement) if placement.is_ipc_capable != 0 => Family::Plain,
            Some(placement) if placement.pool != 0 => Family::Pool,
            Some(_) => Family::Vmm,
            None => Family::Unknown,
        };
        let range = AddressRange {
            base: DevicePtr::new(self.start),
            size: self.size as u64,
        };
        // For VMM memory the range is the whole reservation, including its unmapped parts.
        let AddressRange { base, size } = match (family, mapping) {
            (Family::Vmm, Some(mapping)) => mapping,
            _ => range,
        };
        let buffer = BufferId(self.buffer);
        Ok(PointerInfo {
            kind,
            device,
            buffer,
            base,
            size,
            family,
            mapping,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Attributes {
        Attributes {
            memory_type: memory_type::DEVICE,
            is_managed: 0,
            device: 3,
            buffer: 77,
            start: 0x1000,
            size: 0x200,
            placement: None,
        }
    }

    #[test]
    fn memory_of_no_type_is_unknown() {
        let ptr = DevicePtr::new(0x1100);
        let nothing = Attributes {
            memory_type: memory_type::NONE,
            ..answers()
        };
        assert!(matches!(nothing.describe(ptr), Err(Error::UnknownPointer { ptr: p }) if p == ptr));
    }

    #[test]
    fn managed_memory_is_managed_on_the_host_and_on_the_gpu() {
        let ptr = DevicePtr::new(0x1100);
        for memory_type in [memory_type::HOST, memory_type::DEVICE] {
            let managed = Attributes {
                memory_type,
                is_managed: 1,
                device: -2,
                ..answers()
            };
            let info = managed.describe(ptr).unwrap();
            assert_eq!((info.kind, info.device), (PointerKind::Managed, Ordinal(0)));
        }
    }

    #[test]
    fn vmm_memory_is_described_by_its_mapping_and_other_memory_by_its_allocation() {
        let placed = |is_ipc_capable, pool| Attributes {
            placement: Some(Placement {
                is_ipc_capable,
                pool,
                mapping_start: 0x1100,
                mapping_size: 0x80,
            }),
            ..answers()
        };
        let ptr = DevicePtr::new(0x1100);
        let vmm = placed(0, 0).describe(ptr).unwrap();
        assert_eq!((vmm.family, vmm.base, vmm.size), (Family::Vmm, ptr, 0x80));
        for (answers, family) in [(placed(1, 0), Family::Plain), (placed(0, 1), Family::Pool)] {
            let info = answers.describe(ptr).unwrap();
            assert_eq!(
                (info.family, info.base.get(), info.size),
                (family, 0x1000, 0x200)
            );
            assert_eq!(
                info.mapping,
                Some(AddressRange {
                    base: ptr,
                    size: 0x80
                })
            );
        }
        let old = answers().describe(ptr).unwrap();
        assert_eq!((old.family, old.mapping), (Family::Unknown, None));
    }

    #[test]
    fn a_kind_newer_than_this_library_keeps_its_number() {
        let array = Attributes {
            memory_type: 3,
            ..answers()
        };
        let info = array.describe(DevicePtr::new(0x1100)).unwrap();
        assert_eq!(info.kind, PointerKind::Other(3));
        assert_eq!((info.device, info.buffer), (Ordinal(3), BufferId(77)));
        assert_eq!((info.base, info.size), (DevicePtr::new(0x1000), 0x200));
    }
}
