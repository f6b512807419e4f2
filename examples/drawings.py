"""The pictures of the gallery: one function per example, in one style that can also be read in grey."""

import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap

BLUE, RED, ORANGE, GREY = "#003f5c", "#ef5675", "#e08a00", "0.7"
STYLE = {
    "figure.constrained_layout.use": True,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "image.cmap": "gray",
    "savefig.dpi": 120,
}
plt.rcParams.update(STYLE)


def two_moons(picture, x, y, weights, found):
    figure, panels = plt.subplots(1, 4, figsize=(10, 2.9), sharey=True)
    colours = LinearSegmentedColormap.from_list("moons", ["#ffd180", "white", "#7f9fad"], 16)
    box = (-2.2, 2.8, -1.8, 2.2)
    for axes, weight, (right, sigma, _, region) in zip(panels, weights, found, strict=True):
        axes.contourf(region, 16, extent=box, cmap=colours, vmin=0, vmax=1)
        axes.contour(region, [0.5], extent=box, colors="black", linewidths=1.5)
        for label, marker, colour in ((0, "o", ORANGE), (1, "^", BLUE)):
            axes.plot(*x[y == label].T, marker, color=colour, markersize=4, mec="white", mew=0.4)
        axes.set(aspect="equal", title=f"λ = {weight}\nmean σ {sigma:.1f}, test {right:.1%}", xlabel="$x_1$")
    panels[0].set_ylabel("$x_2$")
    figure.savefig(picture)


def sensitive_digits(picture, x, y, predicted, sigma, order, shown=8):
    figure = plt.figure(figsize=(10, 3.9))
    rows = {"Most sensitive": order[:shown], "Least sensitive": order[-shown:]}
    for part, (name, which) in zip(figure.subfigures(2, 1, hspace=0.06), rows.items(), strict=True):
        part.suptitle(name, x=0.005, ha="left", fontsize=11)
        for axes, i in zip(part.subplots(1, shown), which.tolist(), strict=True):
            wrong = predicted[i] != y[i]
            _image(axes, x[i, 0], vmin=0, vmax=1)
            axes.set_xlabel(f"σ = {sigma[i]:#.2g}")
            axes.set_title(f"{y[i]}, taken for {predicted[i]}" if wrong else f"{y[i]}", fontsize=9)
    figure.savefig(picture)


def singular_vectors(picture, lengths, x, label, S, V, along, by_chance):
    figure, panels = plt.subplots(1, 5, figsize=(11, 2.6), width_ratios=(1, 1, 1, 1, 2))
    _image(panels[0], x[0, 0])
    panels[0].set_title(f"the image, a {label}")
    for i, axes in enumerate(panels[1:4]):
        _image(axes, V[i, 0], cmap="RdBu", vmin=-0.4, vmax=0.4)
        axes.set_title(f"$v_{i + 1}$, σ$_{i + 1}$ = {S[i]:.1f}")
    panels[2].set_xlabel("blue: brighter, red: darker")
    curves = panels[4]
    curves.plot(lengths, by_chance[:, :40], color=GREY, linewidth=0.6)
    curves.plot([], color=GREY, linewidth=0.6, label="random directions")
    curves.plot(lengths, along, color=BLUE, label="along $v_1$")
    curves.axhline(0, color="black", linewidth=0.8, linestyle="--")
    curves.set(xlabel="length of the step", ylabel=f"lead of class {label}")
    curves.legend(loc="lower left")
    figure.savefig(picture)


def gan_critic(picture, data, found):
    figure, panels = plt.subplots(1, 4, figsize=(11, 2.9), width_ratios=(1.3, 1, 1.3, 1))
    for k, (title, (points, rounds, said, exact)) in enumerate(found.items()):
        curves, plane = panels[2 * k : 2 * k + 2]
        curves.plot(rounds, said, color=BLUE, label="as the critic has it")
        curves.plot(rounds, exact, "--", color=RED, label="exact")
        curves.set(title=f"{title}: distance", xlabel="round", ylabel="Wasserstein distance")
        plane.plot(*data.T, ".", color=GREY, markersize=3, label="data")
        plane.plot(*points.T, "x", color=BLUE, markersize=2.5, label="made")
        plane.set(title=f"{title}: points", xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        plane.set(xlim=(-1.6, 1.6), ylim=(-1.6, 2.4))
    panels[2].legend()
    panels[3].legend(loc="upper right", ncols=2, markerscale=2, handletextpad=0, columnspacing=1)
    figure.savefig(picture)


def deep_equilibrium(picture, found):
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.3), sharey=True)
    for axes, (title, (right, sigma, moved)) in zip(panels, found.items(), strict=True):
        rounds = range(1, len(moved) + 1)
        axes.fill_between(rounds, moved.amin(1), moved.amax(1), color="0.88", label="all test images")
        axes.plot(rounds, moved.amax(1), "--", color=RED, label="the slowest")
        axes.plot(rounds, moved.median(1)[0], color=BLUE, label="median")
        axes.set(yscale="log", ylim=(1e-8, 3), xlabel="round")
        axes.set_title(f"{title}: largest σ {sigma:.2f}, test {right:.1%}")
    panels[0].set_ylabel("how far z moves, relative")
    panels[0].legend(loc="lower left")
    figure.savefig(picture)


def plug_and_play(picture, images, known, filled):
    """Half of the pixels, what each denoiser makes of them, and the truth."""
    rows = {"known": (known * images).where(known, 0.5), **filled, "truth": images}
    figure, grid = plt.subplots(len(rows), 8, figsize=(6.4, 3.6))
    for line, (name, shown) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, shown[:, 0], strict=False):
            _image(axes, image.nan_to_num(0.5), vmin=0, vmax=1)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.savefig(picture)


def _image(axes, image, **options):
    axes.imshow(image, **options)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def smooth_policy(picture, found):
    figure, panels = plt.subplots(1, 3, figsize=(10, 2.9), width_ratios=(1, 1, 1.4))
    for axes, (weight, (sigma, actions, _)) in zip(panels, found.items(), strict=False):
        box = (-180, 180, -8, 8)
        shown = axes.imshow(actions, origin="lower", extent=box, aspect="auto", cmap="RdBu", vmin=-2, vmax=2)
        axes.set(title=f"λ = {weight}, mean σ {sigma:.2f}", xlabel="angle", ylabel="speed")
        axes.set_xticks([-180, 0, 180], ["−180°", "0°", "180°"])
    figure.colorbar(shown, ax=panels[1], label="torque")
    for (weight, (*_, played)), colour in zip(found.items(), (RED, BLUE), strict=True):
        panels[2].plot(played, color=colour, linewidth=1.2, label=f"λ = {weight}")
    panels[2].set(title="an episode seen with noise", xlabel="step", ylabel="torque", ylim=(-2.2, 3.4))
    panels[2].legend(ncol=2, loc="upper right")
    figure.savefig(picture)
