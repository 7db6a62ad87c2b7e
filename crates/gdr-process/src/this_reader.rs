//! The calling thread's [`Reader`].

use std::cell::Cell;

use crate::fork::{PerProcess, ProcessId};
use crate::reader::{Reader, Readers};

static READERS: PerProcess<Readers> = PerProcess::new();

thread_local! {
    // Has no destructor, so it is readable until the thread ends.
    static OWN: Cell<Option<(&'static Reader, ProcessId)>> = const { Cell::new(None) };
    static AT_EXIT: ReleaseAtExit = const { ReleaseAtExit };
}

/// Releases the thread's reader when the thread ends.
struct ReleaseAtExit;

impl Drop for ReleaseAtExit {
    fn drop(&mut self) {
        if let Some((reader, _)) = OWN.take() {
            reader.release();
        }
    }
}

/// Returns the readers of this process. A forked child starts without any: a thread of its parent may have left marks.
pub(crate) fn readers() -> &'static Readers {
    READERS.get_fast()
}

/// Returns the calling thread's reader. `None` once the thread's destructors have run.
#[inline]
pub(crate) fn this_reader() -> Option<&'static Reader> {
    match OWN.get() {
        Some((reader, origin)) if origin.is_current_fast() => Some(reader),
        _ => first_use(),
    }
}

#[cold]
fn first_use() -> Option<&'static Reader> {
    AT_EXIT.try_with(|_| ()).ok()?;
    let reader = readers().claim();
    OWN.set(Some((reader, ProcessId::current())));
    Some(reader)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::{ptr, thread};

    use super::*;

    #[test]
    fn a_thread_keeps_its_reader_and_releases_it_at_its_end() {
        let readers: HashSet<usize> = (0..200)
            .map(|_| {
                let address = || {
                    let reader = this_reader().unwrap();
                    assert!(ptr::eq(this_reader().unwrap(), reader));
                    ptr::from_ref(reader).addr()
                };
                thread::spawn(address).join().unwrap()
            })
            .collect();
        // Other tests claim some meanwhile.
        assert!(readers.len() < 50, "{} readers", readers.len());
    }

    #[test]
    fn a_forked_child_has_a_reader_of_its_own() {
        let own = this_reader().unwrap();
        let mark = own.mark(ptr::dangling_mut()).unwrap();
        forked::in_child(|| {
            let is_own = !ptr::eq(this_reader().unwrap(), own);
            let is_fresh = readers().wait_for(ptr::dangling_mut(), 1);
            (is_own && is_fresh)
                .then_some(())
                .ok_or("the parent's marks")
        });
        drop(mark);
    }
}
