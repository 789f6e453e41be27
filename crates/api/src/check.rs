//! Collects everything that is wrong with a request, instead of stopping at the first mistake.

use crate::FieldError;

/// What is expected of a field that is not there.
pub(crate) const REQUIRED: &str = "a value: this field is required";

/// The mistakes found so far.
#[derive(Debug, Default)]
pub struct Check {
    errors: Vec<FieldError>,
}

impl Check {
    /// Nothing wrong yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a mistake.
    pub fn wrong(&mut self, field: impl Into<String>, expected: impl Into<String>) {
        self.errors.push(FieldError {
            field: field.into(),
            expected: expected.into(),
        });
    }

    /// Keeps a value, or notes what is wrong with it under the name that the caller knows.
    pub fn take<T>(&mut self, field: &str, result: Result<T, lease::Invalid>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(invalid) => {
                self.wrong(field, invalid.expected);
                None
            }
        }
    }

    /// A value that must be there.
    pub fn required<T>(&mut self, field: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.wrong(field, REQUIRED);
        }
        value
    }

    /// The mistakes, or the value if there were none.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Vec<FieldError>> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(self.errors),
        }
    }
}
