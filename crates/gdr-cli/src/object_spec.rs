//! Textual specification of the objects that `gdr serve` offers, and of the source of their content.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use gdr_object::{Checksum, Element, InvalidMode, InvalidName, Mode, ObjectName, Rights, Shape};

use crate::gpu::GpuName;
use crate::spelling::nearest;
use crate::units::size;

/// An object to create: `name=weights,gpu=0,size=1G,mode=latest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectSpec {
    pub(crate) name: ObjectName,
    pub(crate) location: SpecLocation,
    pub(crate) element: Element,
    /// `None` if the content determines the number of elements.
    pub(crate) shape: Option<Shape>,
    pub(crate) mode: Mode,
    pub(crate) checksum: Checksum,
    /// What peers may do.
    pub(crate) rights: Rights,
}

/// Where to allocate an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpecLocation {
    Host,
    /// In GPU memory; without a name, on the GPU that `--gpu` names.
    Gpu(Option<GpuName>, GpuReach),
}

/// How a soft device accesses GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuReach {
    /// Through a mapping if one can be made.
    Best,
    /// Through host memory.
    Staged,
}

/// A text that is not a valid object specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidSpec {
    #[error("`{0}` is not KEY=VALUE; the keys are {keys}", keys = KEYS.join(", "))]
    NotAPair(String),
    #[error("`{0}` is not a valid key{meant}; the keys are {keys}", meant = meant(.0), keys = KEYS.join(", "))]
    UnknownKey(String),
    #[error("the key {0} occurs twice; keep one of them")]
    Twice(&'static str),
    #[error("the object has no name; add name=NAME")]
    NoName,
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("gpu: {0}")]
    Gpu(String),
    #[error("element: {0}")]
    Element(String),
    #[error("size: {0}")]
    Size(String),
    #[error("the size must not be 0; an object has at least one element")]
    NoBytes,
    #[error(
        "the size {bytes} is not a multiple of {}, the size of an {element} element",
        element.size()
    )]
    PartOfAnElement { bytes: u64, element: Element },
    #[error("`{0}` is not a shape; give the number of elements along each dimension: 1024x768")]
    NotAShape(String),
    #[error("{0}")]
    Shape(String),
    #[error(
        "size={size} contradicts shape={shape}, which takes {bytes} bytes; leave one of them out"
    )]
    SizeAndShape { size: u64, shape: Shape, bytes: u64 },
    #[error(transparent)]
    Mode(#[from] InvalidMode),
    #[error("`{0}` is not a checksum; use none or sum64")]
    Checksum(String),
    #[error("`{0}` is not a valid access; use read or read-write")]
    Access(String),
    #[error("`{0}` is not a valid reach; use best or staged")]
    Reach(String),
    #[error("reach applies to GPU memory only; add gpu=GPU, or leave reach out")]
    ReachWithoutGpu,
}

/// The keys of a specification.
const KEYS: [&str; 10] = [
    "name",
    "gpu",
    "reach",
    "size",
    "element",
    "shape",
    "mode",
    "when-full",
    "checksum",
    "access",
];

/// Returns the key that was probably meant, as a part of a sentence.
fn meant(key: &str) -> String {
    nearest(key, KEYS).map_or_else(String::new, |near| format!(": did you mean {near}?"))
}

/// The values of a specification, as text.
struct Values<'a>([Option<&'a str>; KEYS.len()]);

impl<'a> Values<'a> {
    fn read(text: &'a str) -> Result<Self, InvalidSpec> {
        let mut values = [None; KEYS.len()];
        for part in text.split(',') {
            // The only key that needs no value.
            let pair = part
                .split_once('=')
                .or((part == "gpu").then_some((part, "")));
            let (key, value) = pair.ok_or_else(|| InvalidSpec::NotAPair(shown(part)))?;
            let at = KEYS.iter().position(|known| *known == key);
            let at = at.ok_or_else(|| InvalidSpec::UnknownKey(shown(key)))?;
            if values[at].replace(value).is_some() {
                return Err(InvalidSpec::Twice(KEYS[at]));
            }
        }
        Ok(Self(values))
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        let at = KEYS.iter().position(|known| *known == key)?;
        self.0[at]
    }
}

impl FromStr for ObjectSpec {
    type Err = InvalidSpec;

    fn from_str(text: &str) -> Result<Self, InvalidSpec> {
        let values = Values::read(text)?;
        let element = element(values.get("element"))?;
        Ok(Self {
            name: ObjectName::new(values.get("name").ok_or(InvalidSpec::NoName)?)?,
            location: location(values.get("gpu"), values.get("reach"))?,
            element,
            shape: shape(values.get("shape"), values.get("size"), element)?,
            mode: Mode::parse(
                values.get("mode").unwrap_or("latest"),
                values.get("when-full"),
            )?,
            checksum: match values.get("checksum") {
                None | Some("none") => Checksum::None,
                Some("sum64") => Checksum::Sum64,
                Some(other) => return Err(InvalidSpec::Checksum(shown(other))),
            },
            rights: match values.get("access") {
                None | Some("read") => Rights::Read,
                Some("read-write") => Rights::ReadWrite,
                Some(other) => return Err(InvalidSpec::Access(shown(other))),
            },
        })
    }
}

fn location(gpu: Option<&str>, reach: Option<&str>) -> Result<SpecLocation, InvalidSpec> {
    let reach = match (reach, gpu) {
        (Some(_), None) => return Err(InvalidSpec::ReachWithoutGpu),
        (None | Some("best"), _) => GpuReach::Best,
        (Some("staged"), _) => GpuReach::Staged,
        (Some(other), _) => return Err(InvalidSpec::Reach(shown(other))),
    };
    match gpu {
        None => Ok(SpecLocation::Host),
        Some("") => Ok(SpecLocation::Gpu(None, reach)),
        Some(name) => {
            let name = GpuName::parse(name).map_err(InvalidSpec::Gpu)?;
            Ok(SpecLocation::Gpu(Some(name), reach))
        }
    }
}

fn element(text: Option<&str>) -> Result<Element, InvalidSpec> {
    let Some(text) = text else {
        return Ok(Element::U8);
    };
    text.parse()
        .map_err(|error: gdr_object::InvalidElement| InvalidSpec::Element(error.to_string()))
}

fn shape(
    shape: Option<&str>,
    bytes: Option<&str>,
    element: Element,
) -> Result<Option<Shape>, InvalidSpec> {
    let refused = |error: gdr_object::Error| InvalidSpec::Shape(error.to_string());
    let bytes = bytes.map(size).transpose().map_err(InvalidSpec::Size)?;
    if let Some(text) = shape {
        let shape = parse_shape(text)?;
        let len = shape.bytes(element).map_err(refused)?;
        return match bytes {
            Some(size) if size != len => Err(InvalidSpec::SizeAndShape {
                size,
                shape,
                bytes: len,
            }),
            _ => Ok(Some(shape)),
        };
    }
    bytes.map(|bytes| row(bytes, element)).transpose()
}

/// Returns the shape of a row of elements with this many bytes.
pub(crate) fn row(bytes: u64, element: Element) -> Result<Shape, InvalidSpec> {
    if bytes == 0 {
        return Err(InvalidSpec::NoBytes);
    }
    if !bytes.is_multiple_of(element.size()) {
        return Err(InvalidSpec::PartOfAnElement { bytes, element });
    }
    let refused = |error: gdr_object::Error| InvalidSpec::Shape(error.to_string());
    let shape = Shape::row(bytes / element.size()).map_err(refused)?;
    // Fails for more than an address space.
    shape.bytes(element).map_err(refused)?;
    Ok(shape)
}

/// Reads a shape, `1024x768`.
pub(crate) fn parse_shape(text: &str) -> Result<Shape, InvalidSpec> {
    let wrong = || InvalidSpec::NotAShape(shown(text));
    let dimension = |part: &str| {
        let is_plain = part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u64>().ok().filter(|_| is_plain)
    };
    // One dimension more than allowed is refused as such, so the rest need not be read.
    let parts = text.split('x').take(Shape::MOST + 1).map(dimension);
    let dimensions: Option<Vec<u64>> = parts.collect();
    Shape::new(dimensions.ok_or_else(wrong)?).map_err(|error| InvalidSpec::Shape(error.to_string()))
}

/// As much of a text as an error shows, without control characters.
fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let printable = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(MOST).map(printable).collect()
}

/// Source of an object's content: `FILE`, `-`, or `NAME=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContentSpec {
    /// The object; `None` means the only one.
    pub(crate) name: Option<ObjectName>,
    pub(crate) source: ContentSource,
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentSource {
    Stdin,
    File(PathBuf),
}

impl ContentSource {
    /// Standard input for `-`.
    pub(crate) fn new(text: &str) -> Self {
        match text {
            "-" => Self::Stdin,
            path => Self::File(path.into()),
        }
    }
}

impl fmt::Display for ContentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for ContentSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, source) = match text.split_once('=') {
            Some((name, source)) => (Some(name), source),
            None => (None, text),
        };
        if source.is_empty() {
            return Err(
                "the file name is missing; use FILE, NAME=FILE, or - for standard input".into(),
            );
        }
        let name = name.map(ObjectName::new).transpose();
        Ok(Self {
            name: name.map_err(|error| error.to_string())?,
            source: ContentSource::new(source),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use snapshot::assert_contains;

    use gdr_object::WhenFull;

    use super::*;

    fn parse(text: &str) -> ObjectSpec {
        text.parse().unwrap()
    }

    fn refused(text: &str) -> InvalidSpec {
        text.parse::<ObjectSpec>().unwrap_err()
    }

    #[test]
    fn an_object_is_in_host_memory_latest_and_of_bytes_unless_it_says_otherwise() {
        let plain = parse("name=weights,size=1G");
        assert_eq!(plain.location, SpecLocation::Host);
        assert_eq!(plain.shape.unwrap().dimensions(), [1 << 30]);
        assert_eq!(plain.element, Element::U8);
        assert_eq!(plain.mode, Mode::Latest);
        assert_eq!(plain.rights, Rights::Read);
        assert_eq!(parse("name=w").shape, None);
    }

    #[test]
    fn every_key_is_read() {
        let spec = parse(
            "name=model/l.0:q,gpu=1,reach=staged,element=bf16,shape=4x8,size=64,mode=ring:8,\
             when-full=block,checksum=sum64,access=read-write",
        );
        let expected = ObjectSpec {
            name: ObjectName::new("model/l.0:q").unwrap(),
            location: SpecLocation::Gpu(Some(GpuName::Index(1)), GpuReach::Staged),
            element: Element::Bf16,
            shape: Some(Shape::new([4, 8]).unwrap()),
            mode: Mode::Ring {
                slots: 8,
                when_full: WhenFull::Block,
            },
            checksum: Checksum::Sum64,
            rights: Rights::ReadWrite,
        };
        assert_eq!(spec, expected);
        let gpu = SpecLocation::Gpu(None, GpuReach::Best);
        assert_eq!(parse("gpu,name=w,size=4").location, gpu);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let f32s = Element::F32;
        for (text, error) in [
            ("", InvalidSpec::NotAPair(String::new())),
            ("name=w,", InvalidSpec::NotAPair(String::new())),
            ("name", InvalidSpec::NotAPair("name".into())),
            ("name=w,sise=4", InvalidSpec::UnknownKey("sise".into())),
            ("name=w,size=4,size=4", InvalidSpec::Twice("size")),
            ("size=4", InvalidSpec::NoName),
            ("name=w,size=0", InvalidSpec::NoBytes),
            (
                "name=w,size=6,element=f32",
                InvalidSpec::PartOfAnElement {
                    bytes: 6,
                    element: f32s,
                },
            ),
            ("name=w,shape=", InvalidSpec::NotAShape(String::new())),
            ("name=w,shape=3x", InvalidSpec::NotAShape("3x".into())),
            ("name=w,shape=+3", InvalidSpec::NotAShape("+3".into())),
            (
                "name=w,mode=ring:1",
                InvalidSpec::Mode(InvalidMode::Mode("ring:1".into())),
            ),
            (
                "name=w,when-full=block",
                InvalidSpec::Mode(InvalidMode::WhenFullWithoutRing),
            ),
            ("name=w,checksum=md5", InvalidSpec::Checksum("md5".into())),
            ("name=w,access=write", InvalidSpec::Access("write".into())),
            ("name=w,reach=staged", InvalidSpec::ReachWithoutGpu),
            ("name=w,gpu=0,reach=x", InvalidSpec::Reach("x".into())),
            (
                "name=w,shape=2x2,element=f32,size=8",
                InvalidSpec::SizeAndShape {
                    size: 8,
                    shape: Shape::new([2, 2]).unwrap(),
                    bytes: 16,
                },
            ),
        ] {
            assert_eq!(refused(text), error, "{text}");
        }
        for (text, words) in [
            ("name=a b", "use 1 to 200"),
            ("name=../etc", "beginning with a letter"),
            ("name=w,gpu=mlx5_0", "PCI address"),
            ("name=w,element=float", "bf16, f32"),
            ("name=w,size=1X", "`1X` is not a size"),
            ("name=w,shape=2x0", "no elements"),
            (
                "name=w,shape=1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1",
                "16 dimensions",
            ),
            ("name=w,size=65T", "address space"),
            ("name=w,size=4,rights=read", "the keys are name, gpu"),
        ] {
            let error = refused(text).to_string();
            assert_contains!(error, words, "{text}");
        }
    }

    #[test]
    fn content_comes_from_a_file_or_standard_input() {
        let parse = |text: &str| text.parse::<ContentSpec>();
        let stdin = parse("-").unwrap();
        assert_eq!((stdin.name, stdin.source), (None, ContentSource::Stdin));
        let file = parse("w=/a=b").unwrap();
        assert_eq!(file.name, Some(ObjectName::new("w").unwrap()));
        assert_eq!(file.source, ContentSource::File("/a=b".into()));
        assert!(parse("").is_err() && parse("w=").is_err());
        assert!(parse("a b=x").unwrap_err().contains("use 1 to 200"));
    }

    fn spec() -> impl Strategy<Value = (String, ObjectSpec)> {
        let name = "[a-zA-Z0-9][a-zA-Z0-9_.:/-]{0,20}";
        let shape = proptest::collection::vec(1..9_u64, 1..5);
        let element = proptest::sample::select(Element::ALL.to_vec());
        let slots = 2..=Mode::MOST_SLOTS;
        let word = any::<(bool, bool, bool, bool)>();
        (name, shape, element, 0..3_u8, slots, word, 0..9_u32).prop_map(
            |(name, dimensions, element, mode, slots, (block, sums, writes, gpu), index)| {
                let when_full = match block {
                    true => WhenFull::Block,
                    false => WhenFull::DropOldest,
                };
                let (mode, mode_text) = match mode {
                    0 => (Mode::Live, "live".to_owned()),
                    1 => (Mode::Latest, "latest".to_owned()),
                    _ => (
                        Mode::Ring { slots, when_full },
                        format!(
                            "ring:{slots},when-full={}",
                            if block { "block" } else { "drop-oldest" }
                        ),
                    ),
                };
                let by = |number: &u64| number.to_string();
                let shape_text = dimensions.iter().map(by).collect::<Vec<_>>().join("x");
                let mut text = format!(
                    "name={name},element={element},shape={shape_text},mode={mode_text},checksum={},\
                     access={}",
                    if sums { "sum64" } else { "none" },
                    if writes { "read-write" } else { "read" },
                );
                let mut location = SpecLocation::Host;
                if gpu {
                    text += &format!(",gpu={index}");
                    location = SpecLocation::Gpu(Some(GpuName::Index(index)), GpuReach::Best);
                }
                let spec = ObjectSpec {
                    name: ObjectName::new(name).unwrap(),
                    location,
                    element,
                    shape: Some(Shape::new(dimensions).unwrap()),
                    mode,
                    checksum: if sums {
                        Checksum::Sum64
                    } else {
                        Checksum::None
                    },
                    rights: if writes {
                        Rights::ReadWrite
                    } else {
                        Rights::Read
                    },
                };
                (text, spec)
            },
        )
    }

    proptest! {
        #[test]
        fn a_specification_means_what_it_says_in_any_order((text, spec) in spec(), turn in 0..9_usize) {
            let mut parts: Vec<_> = text.split(',').collect();
            let turn = turn % parts.len();
            parts.rotate_left(turn);
            prop_assert_eq!(parse(&parts.join(",")), spec);
        }

        #[test]
        fn any_text_is_read_or_refused_in_one_printable_line(text in any::<String>()) {
            if let Err(error) = text.parse::<ObjectSpec>() {
                let words = error.to_string();
                prop_assert!(!words.is_empty() && !words.contains(char::is_control), "{}", words);
                prop_assert!(words.len() < 2000, "{}", words);
            }
            let _ = text.parse::<ContentSpec>();
        }

        #[test]
        fn a_changed_specification_does_not_panic((text, _) in spec(), at: usize, with in any::<char>()) {
            let mut letters: Vec<char> = text.chars().collect();
            let at = at % letters.len();
            letters[at] = with;
            let _ = letters.into_iter().collect::<String>().parse::<ObjectSpec>();
        }
    }
}
