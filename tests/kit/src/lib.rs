//! Private services, faults and processes for the tests.
