// The parts of Apache ECharts that the report draws with; README.md beside this file says how it is bundled.
import { getInstanceByDom, init, use } from 'echarts/core';
import { CustomChart } from 'echarts/charts';
import { DataZoomComponent, GridComponent, TooltipComponent } from 'echarts/components';
import { CanvasRenderer } from 'echarts/renderers';

use([CustomChart, DataZoomComponent, GridComponent, TooltipComponent, CanvasRenderer]);

export { getInstanceByDom, init };
