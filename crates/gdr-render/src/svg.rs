//! SVG elements.
//!
//! Numbers have one decimal, which is finer than a screen's resolution. All text is escaped, because names in a picture
//! may come from another machine.

use std::fmt::{self, Display, Write};

use crate::Escaped;

/// An SVG element; displays with its content.
#[derive(Clone, Debug)]
pub struct Element {
    name: &'static str,
    attributes: String,
    content: String,
}

impl Element {
    /// Returns an element without attributes and content.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            attributes: String::new(),
            content: String::new(),
        }
    }

    /// Returns the root element of a picture of this size.
    pub fn root((width, height): (f64, f64)) -> Self {
        let (width, height) = (Number(width), Number(height));
        Self::new("svg")
            .with("xmlns", "http://www.w3.org/2000/svg")
            .with("viewBox", format_args!("0 0 {width} {height}"))
            .with("width", width)
            .with("height", height)
    }

    /// Returns a text that starts at `at`.
    pub fn text(at: (f64, f64), words: impl Display) -> Self {
        Self::new("text").pair(["x", "y"], at).words(words)
    }

    /// Returns a line.
    pub fn line(from: (f64, f64), to: (f64, f64)) -> Self {
        Self::new("line")
            .pair(["x1", "y1"], from)
            .pair(["x2", "y2"], to)
    }

    /// Returns a rectangle.
    pub fn rect(at: (f64, f64), size: (f64, f64)) -> Self {
        Self::new("rect")
            .pair(["x", "y"], at)
            .pair(["width", "height"], size)
    }

    /// Adds two numeric attributes.
    pub fn pair(self, [x, y]: [&str; 2], at: (f64, f64)) -> Self {
        self.with(x, Number(at.0)).with(y, Number(at.1))
    }

    /// Adds an attribute.
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        let value = value.to_string();
        // Writing to a string never fails.
        let _ = write!(self.attributes, " {name}=\"{}\"", Escaped(&value));
        self
    }

    /// Centers a text at its position.
    pub fn centered(self) -> Self {
        self.with("text-anchor", "middle")
    }

    /// Adds a text to the content.
    pub fn words(mut self, words: impl Display) -> Self {
        let words = words.to_string();
        let _ = write!(self.content, "{}", Escaped(&words));
        self
    }

    /// Adds a tooltip.
    pub fn titled(self, title: impl Display) -> Self {
        self.containing(Self::new("title").words(title))
    }

    /// Adds an element to the content.
    pub fn containing(mut self, element: Self) -> Self {
        let _ = write!(self.content, "{element}");
        self
    }

    /// Adds elements to the content, one per line.
    pub fn lines(mut self, elements: &str) -> Self {
        let _ = write!(self.content, "\n{elements}");
        self
    }

    /// Appends the element to `out` as a line.
    pub fn put(&self, out: &mut String) {
        let _ = writeln!(out, "{self}");
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            attributes,
            content,
        } = self;
        match content.is_empty() {
            true => write!(f, "<{name}{attributes}/>"),
            false => write!(f, "<{name}{attributes}>{content}</{name}>"),
        }
    }
}

/// A length or coordinate, in units of the picture.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub f64);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.1}", self.0);
        f.write_str(text.strip_suffix(".0").unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_has_its_attributes_in_order_and_its_texts_escaped() {
        let text = Element::text((1.0, 2.25), "a < b")
            .centered()
            .with("fill", "\"red\"");
        assert_eq!(
            text.to_string(),
            "<text x=\"1\" y=\"2.2\" text-anchor=\"middle\" fill=\"&quot;red&quot;\">a &lt; b</text>"
        );
        let rect = Element::rect((0.0, 0.04), (1.5, 2.0)).titled("1 & 2");
        assert_eq!(
            rect.to_string(),
            "<rect x=\"0\" y=\"0\" width=\"1.5\" height=\"2\"><title>1 &amp; 2</title></rect>"
        );
    }
}
