"""Bridges to other libraries, one module each. The core imports none of them."""
