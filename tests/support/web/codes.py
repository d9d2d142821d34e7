"""What a phone reads from a page."""

from __future__ import annotations

import io

import zxingcpp
from PIL import Image
from playwright.async_api import Page


async def decoded(page: Page) -> str:
    """The text of the QR code on the page; part of a code may look like a bar code of another kind."""
    picture = Image.open(io.BytesIO(await page.locator(".qr").screenshot()))
    only = zxingcpp.BarcodeFormats(zxingcpp.BarcodeFormat.QRCode)
    (code,) = zxingcpp.read_barcodes(picture, formats=only)
    return str(code.text)
