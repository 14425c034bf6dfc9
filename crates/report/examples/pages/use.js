/* Uses each button and each key of each chart. */
(() => {
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
    for (const key of ["ArrowLeft", "ArrowRight", "+", "-", "0", "Home"]) svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
    svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", shiftKey: true }));
    for (const button of figure.querySelectorAll("button")) button.click();
    for (const part of [0, 0.3, 0.7, 1])
      svg.dispatchEvent(new PointerEvent("pointermove", { clientX: box.x + box.width * part, clientY: box.y + 50 }));
    svg.dispatchEvent(new PointerEvent("pointercancel"));
    svg.dispatchEvent(new WheelEvent("wheel", { ctrlKey: true, deltaY: -1, clientX: box.x + 100 }));
    svg.dispatchEvent(new MouseEvent("dblclick"));
  }
})()
