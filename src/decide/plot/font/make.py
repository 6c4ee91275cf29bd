"""Makes plot-sans.ttf, the font of PNG pictures, from DejaVu Sans.

    pip install fonttools && python make.py /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf

It keeps the letters of European languages and the signs of titles and paths, and changes
the font's name, as the licence asks of changed fonts.
"""

import pathlib
import sys

from fontTools import subset
from fontTools.ttLib import TTFont

NAME = "Plot Sans"
KEPT = "U+20-7E,U+A0-17F,U+370-3FF,U+400-45F,U+2010-2026,U+2190-2193,U+221A,U+2248,U+2260-2265,U+FFFD"

font = TTFont(sys.argv[1])
options = subset.Options(layout_features=["kern"], hinting=False, name_IDs=[0, 1, 2, 4, 5, 6, 13])
only = subset.Subsetter(options)
only.populate(unicodes=subset.parse_unicodes(KEPT))
only.subset(font)
for record in font["name"].names:
    if record.nameID in (1, 4):
        record.string = NAME
    if record.nameID == 6:
        record.string = NAME.replace(" ", "")
font.save(pathlib.Path(__file__).parent / "plot-sans.ttf")
