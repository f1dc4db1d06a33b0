"""A chart of lines as SVG, for pages of docs/: one axis of powers of two, one linear."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 20, 50  # beside the lines
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b8860b", "#444444")
FONT = 'font-family="sans-serif" font-size="12"'


def ticks(low, high):
    """Round numbers from one to the other, five or six."""
    step = 10 ** math.floor(math.log10(high - low))
    while (high - low) / step < 4:
        step /= 2
    first = math.floor(low / step)
    return [step * i for i in range(first, math.ceil(high / step) + 1)]


def lines_chart(series, x_name, y_name):
    """series: {name: [(x, y)]}, x > 0."""
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    marks = ticks(min(ys) - 1e-9, max(ys) + 1e-9 if max(ys) > min(ys) else max(ys) + 1)
    span = max(math.log2(xs[-1] / xs[0]), 1e-9)

    def at_x(x):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(x / xs[0]) / span

    def at_y(y):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - marks[0]) / (marks[-1] - marks[0])

    def text(x, y, what, anchor="middle", more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(what)}</text>'

    right, middle = WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for y in marks:
        at = at_y(y)
        out.append(f'<line x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 8, at + 4, f"{y:g}", "end"))
    out += [text(at_x(x), HEIGHT - BOTTOM + 18, f"{x:,}") for x in xs]
    for (name, points), colour in zip(series.items(), COLOURS):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        x, y = points[-1]
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(text(at_x(x) + 8, at_y(y) + 4, name, "start", f'fill="{colour}"'))
    out.append(text(middle, HEIGHT - 10, x_name))
    out.append(text(16, HEIGHT / 2, y_name, more=f'transform="rotate(-90 16 {HEIGHT / 2})"'))
    out.append("</svg>")
    return "\n".join(out) + "\n"
