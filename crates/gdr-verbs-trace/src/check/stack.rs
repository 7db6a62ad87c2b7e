//! Call stacks of the program.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::mem;
use std::ptr;

use gdr_check::StackId;

/// Maximum number of frames to keep of a stack.
const FRAMES: usize = 48;

/// Where a function of this library was called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct Caller {
    pub(crate) return_address: usize,
    pub(crate) stack_pointer: usize,
}

/// Where code is.
pub(super) struct Frame {
    /// File of the program or library.
    pub(super) object: String,
    /// The address in that file.
    pub(super) offset: u64,
    pub(super) symbol: Option<String>,
}

/// Stacks that findings may refer to. Number 0 means none.
#[derive(Default)]
pub(super) struct Stacks {
    /// A stack is walked once per caller: a call from the same place with the same stack pointer took the same path,
    /// except in rare programs.
    callers: HashMap<Caller, StackId>,
    known: HashMap<Vec<usize>, StackId>,
    frames: Vec<Vec<usize>>,
}

impl Stacks {
    /// Loads what walking a stack needs, while no lock is held.
    pub(super) fn warm_up() {
        walked();
    }

    /// Returns the stack of a caller of this library, which is in a call.
    #[inline]
    pub(super) fn of(&mut self, caller: Caller) -> StackId {
        if let Some(known) = self.callers.get(&caller) {
            return *known;
        }
        let mut frames = walked();
        // Skip this library's own frames.
        match frames.iter().position(|it| *it == caller.return_address) {
            Some(own) => drop(frames.drain(..own)),
            None => frames = vec![caller.return_address],
        }
        let stack = self.add(frames);
        self.callers.insert(caller, stack);
        stack
    }

    /// Returns the stack of the program's call that this library is in.
    pub(super) fn here(&mut self) -> StackId {
        let mut frames = walked();
        let own = object_of(Stacks::warm_up as *const c_void as usize).0;
        let first = frames.iter().position(|it| object_of(*it).0 != own);
        frames.drain(..first.unwrap_or(frames.len()));
        self.add(frames)
    }

    fn add(&mut self, frames: Vec<usize>) -> StackId {
        if let Some(known) = self.known.get(&frames) {
            return *known;
        }
        self.frames.push(frames.clone());
        let stack = StackId(self.frames.len() as u32);
        self.known.insert(frames, stack);
        stack
    }

    /// Returns the frames of a stack, the innermost first.
    pub(super) fn frames(&self, stack: StackId) -> impl Iterator<Item = Frame> {
        let at = (stack.0 as usize).checked_sub(1);
        let frames = at.and_then(|at| self.frames.get(at));
        frames
            .into_iter()
            .flatten()
            .filter_map(|address| frame(*address))
    }
}

fn walked() -> Vec<usize> {
    let mut frames = [ptr::null_mut::<c_void>(); FRAMES];
    // SAFETY: the array has this many elements.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
    let count = usize::try_from(count).unwrap_or(0);
    frames.iter().take(count).map(|it| it.addr()).collect()
}

/// Returns the base address of the loaded object that contains an address, and the loader's information about it.
fn object_of(address: usize) -> (usize, libc::Dl_info) {
    // SAFETY: zero is a valid value of every field.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: the structure is writable; any address may be looked up.
    unsafe { libc::dladdr(ptr::without_provenance(address), &mut info) };
    (info.dli_fbase.addr(), info)
}

fn frame(address: usize) -> Option<Frame> {
    // The call instruction precedes the return address.
    let call = address.checked_sub(1)?;
    let (base, info) = object_of(call);
    let text = |text: *const libc::c_char| {
        if text.is_null() {
            return None;
        }
        // SAFETY: the loader's C string lives as long as the object stays loaded.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    };
    let symbol = text(info.dli_sname);
    let named = text(info.dli_fname)?;
    // For the program itself, the loader reports the name it was invoked by.
    let is_program = std::env::args_os().next().is_some_and(|it| *it == *named);
    let program = is_program.then(|| std::fs::read_link("/proc/self/exe").ok());
    let object = program
        .flatten()
        .map(|it| it.to_string_lossy().into_owned());
    Some(Frame {
        object: object.unwrap_or(named),
        offset: call.checked_sub(bias(base))? as u64,
        symbol,
    })
}

/// Returns the difference between an object's addresses in memory and in its file.
fn bias(base: usize) -> usize {
    /// Offset of `e_type` in the ELF header (elf.h), and its value for programs that are not position-independent.
    const TYPE: usize = 16;
    const EXECUTABLE: u16 = 2;
    let kind = ptr::with_exposed_provenance::<u16>(base.wrapping_add(TYPE));
    // SAFETY: the loader has mapped the object's header at `base`.
    match unsafe { kind.read() } {
        EXECUTABLE => 0,
        _ => base,
    }
}
