//! Base address registers: the address ranges of a function.

/// The kind of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarKind {
    /// Prefetchable memory, such as the window to a GPU's memory.
    Prefetchable,
    /// Memory with side effects: registers.
    Memory,
    /// I/O space.
    Io,
}

/// One address range of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// The number of the BAR, 0 to 5.
    pub number: u8,
    /// Its kind.
    pub kind: BarKind,
    /// The first address, as seen by the CPU; 0 if Linux hides it.
    pub start: u64,
    /// The size in bytes.
    pub size: u64,
}

/// `IORESOURCE_IO`, `IORESOURCE_MEM`, `IORESOURCE_PREFETCH` of Linux `include/linux/ioport.h`.
const IO: u64 = 0x100;
const MEM: u64 = 0x200;
const PREFETCH: u64 = 0x2000;

/// Parses sysfs `resource`: `start end flags`, one range per line; the first six are BARs.
pub(crate) fn parse_resource(text: &str) -> Vec<Bar> {
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let bar = |(number, line): (usize, &str)| {
        let mut words = line.split_whitespace().map(hex);
        let (start, end, flags) = (words.next()??, words.next()??, words.next()??);
        let kind = match flags {
            _ if flags & IO != 0 => BarKind::Io,
            _ if flags & MEM == 0 => return None,
            _ if flags & PREFETCH != 0 => BarKind::Prefetchable,
            _ => BarKind::Memory,
        };
        let size = end.checked_sub(start)?.checked_add(1)?;
        Some(Bar {
            number: number as u8,
            kind,
            start,
            size,
        })
    };
    text.lines().take(6).enumerate().filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_keep_the_numbers_of_the_others() {
        let text = "0x00000000b4000000 0x00000000b4ffffff 0x0000000000040200\n\
                    0x0000013000000000 0x0000013fffffffff 0x000000000014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    garbage\n\
                    0x0 0xffffffffffffffff 0x200\n\
                    0x5000 0x507f 0x40101\n";
        let bars = parse_resource(text);
        let short: Vec<_> = bars
            .iter()
            .map(|bar| (bar.number, bar.kind, bar.size))
            .collect();
        assert_eq!(
            short,
            [
                (0, BarKind::Memory, 16 << 20),
                (1, BarKind::Prefetchable, 64 << 30),
                (5, BarKind::Io, 128),
            ]
        );
    }
}
